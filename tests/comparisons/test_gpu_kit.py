"""The GPU kit on a bare image, as far as a CPU can try it: what it carries, what ends, what survives."""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import gpu_kit
import pytest

from comparisons.bare_image import blocked

HERE = Path(__file__).parent
CARRIED = ["pydantic", "pydantic-core", "annotated-types", "typing-inspection", "msgspec"]
LEAST_TESTS = 230

FAKES = '''
"""Parts that end in every way."""
import os, time
from harness.gpu.budget import OutOfTime

def each(check, count, act=lambda number: None):
    for number in range(count):
        if check.want(f"number {number}"):
            with check.trying(f"number {number}"):
                act(number)
                time.sleep(0.02)
                check.note(f"number {number}", {"per_s": number})

def steady(check): each(check, 40)
def raises_once(check):
    def act(number):
        assert number != 1, "one of them fails"
    each(check, 4, act)
def raises(check):
    each(check, 2)
    raise OSError("the disk is full")
def crashes(check):
    def act(number):
        if number == 1: os.kill(os.getpid(), 11)
    each(check, 3, act)
def hangs(check):
    def act(number):
        if number == 2: time.sleep(1000)
    each(check, 3, act)
def stuck(check):
    raise OutOfTime("it never begins")
'''
FAKE_PARTS = ("steady", "raises_once", "raises", "crashes", "hangs", "stuck")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Processes of it find what a bare image has."""
    folder = tmp_path_factory.mktemp("bare")
    text = (HERE / "bare_image.py").read_text(encoding="utf-8")
    text += f"\n\nblocked = lambda: {sorted(blocked())!r}\nblock()\n"
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def make_kit(folder: Path, names: list[str]) -> Path:
    """A kit for this Python, its wheels packed from what is installed here: no network."""
    gpu_kit.copy_sources(folder)
    wheels = folder / "wheels"
    wheels.mkdir()
    for name in names:
        installed = importlib.metadata.distribution(name)
        with zipfile.ZipFile(wheels / f"{name.replace('-', '_')}-{installed.version}-py3-none-any.whl", "w") as file:
            for entry in installed.files or []:
                if not str(entry).startswith("..") and Path(str(installed.locate_file(entry))).is_file():
                    file.write(str(installed.locate_file(entry)), str(entry))
    entries = [{**gpu_kit.look_into(path), "needed": []} for path in sorted(wheels.iterdir())]
    kit = {"python": gpu_check_tag(), "source": {"commit": "abc", "dirty": False}, "wheels": entries}
    (folder / "kit.json").write_text(json.dumps(kit), encoding="utf-8")
    return folder


def test_what_the_kit_takes_along_has_a_module() -> None:
    """By which `run.py` sees whether a machine has it; a package of programs alone is none to take."""
    modules = {
        gpu_kit.name_of(name) for names in importlib.metadata.packages_distributions().values() for name in names
    }
    wanted = [line for line in importlib.metadata.requires("scalewright") or [] if ";" not in line]
    assert {gpu_kit.name_of(line) for line in wanted} - set(gpu_kit.LEFT_OUT) <= modules


def gpu_check_tag() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def visit(kit: Path, out: Path, environ: dict[str, str], *words: str, timeout: float = 200) -> Any:
    command = [sys.executable, str(kit / "run.py"), "--device", "cpu", "--quick", "--out", str(out), *words]
    return subprocess.run(
        command, cwd=out.parent, env=environ, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )


def results(out: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / "gpu-check.json").read_text())
    return data


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kit(tmp_path_factory.mktemp("kit"), CARRIED)


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit whose parts end in every way."""
    folder = make_kit(tmp_path_factory.mktemp("fakes"), CARRIED)
    gpu = folder / "comparisons" / "harness" / "gpu"
    (gpu / "fakes.py").write_text(FAKES, encoding="utf-8")
    lines = [
        f'    Part("{name}", "fakes:{name}", {3 if name == "hangs" else 60}, 1, timed=False),' for name in FAKE_PARTS
    ]
    text = (gpu / "parts.py").read_text(encoding="utf-8")
    start, end = text.index("PARTS = ("), text.index("# fmt: on")
    (gpu / "parts.py").write_text(
        text[:start] + "PARTS = (\n" + "\n".join(lines) + "\n)\n" + text[end:], encoding="utf-8"
    )
    report = (gpu / "report.py").read_text(encoding="utf-8")
    (gpu / "report.py").write_text(report.replace("RATES[name]", 'RATES["memory"]'), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_bare_image_runs_it_with_the_wheels_and_not_without(
    kit: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    done = visit(kit, tmp_path / "out", environ, "--parts", "gemm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{name} " in done.stdout for name in CARRIED)
    assert results(tmp_path / "out")["parts"]["gemm"]["status"] == "done"
    assert results(tmp_path / "out")["visits"][0]["source"]["commit"] == "abc"
    (kit / "kit.json").rename(kit / "away.json")
    try:
        (kit / "kit.json").write_text(json.dumps({"python": "cp39", "source": {}, "wheels": []}))
        bare = visit(kit, tmp_path / "without", environ)
    finally:
        (kit / "away.json").replace(kit / "kit.json")
    assert bare.returncode == 2
    (line,) = bare.stderr.strip().splitlines()
    assert line.endswith("No module named 'pydantic'")


@pytest.mark.slow
def test_every_test_with_a_gpu_parameter_is_collected_there(kit: Path, environ: dict[str, str], tmp_path: Path) -> None:
    """By the kit's own choice of files; the same that pytest finds in all of them here."""
    import harness.gpu.suite as suite

    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-m", "gpu"]
    bare = [*command, "-c", os.devnull, f"--rootdir={kit}", "-p", "harness.gpu.outcomes", *suite.files()]
    site = tmp_path / "site"
    for wheel in (kit / "wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(site)
    paths = [environ["PYTHONPATH"], *(str(kit / name) for name in ("src", "tests", "comparisons", "")), str(site)]
    there = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(bare, cwd=kit, env=there, capture_output=True, text=True, timeout=200)
    collected = {line for line in done.stdout.splitlines() if "::" in line}
    assert not [line for line in done.stdout.splitlines() if line.startswith("ERROR")], done.stdout
    assert len(collected) >= LEAST_TESTS
    marked = [path.name for path in (gpu_kit.ROOT / "tests").rglob("*.py") if "mark.gpu" in path.read_text()]
    assert sorted(marked) == ["devices.py", Path(__file__).name]  # each takes its parameter from devices.py


@pytest.mark.slow  # a minute, most of it waiting for limits
def test_parts_end_in_every_way_and_the_next_begins(fakes: Path, environ: dict[str, str], tmp_path: Path) -> None:
    done = visit(fakes, tmp_path / "out", environ)
    assert done.returncode == 75, done.stdout + done.stderr  # hangs and stuck were cut once
    parts = results(tmp_path / "out")["parts"]
    assert {name: parts[name]["status"].partition(":")[0] for name in FAKE_PARTS[:4]} == {
        "steady": "done", "raises_once": "done", "raises": "failed", "crashes": "done",
    }  # fmt: skip
    assert parts["raises_once"]["values"]["number 1"] == {"error": "AssertionError: one of them fails"}
    assert "the disk is full" in parts["raises"]["status"]
    assert "OSError" in parts["raises"]["traceback"]
    assert "SIGSEGV" in parts["crashes"]["values"]["number 1"]["error"]
    assert parts["crashes"]["values"]["number 2"] == {"per_s": 2}
    assert parts["hangs"]["status"].startswith("cut: it went on")
    again = visit(fakes, tmp_path / "out", environ, "--resume")
    while again.returncode == 75:
        again = visit(fakes, tmp_path / "out", environ, "--resume")
    assert again.returncode == 1, again.stdout + again.stderr
    parts = results(tmp_path / "out")["parts"]
    assert parts["hangs"]["status"] == "done"
    assert "past its limit" in parts["hangs"]["values"]["number 2"]["error"]
    assert "nothing new" in parts["stuck"]["status"]
    assert (tmp_path / "out" / "gpu-check.md").read_text().count("| steady") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_visit_that_is_ended_loses_nothing(number: int, fakes: Path, environ: dict[str, str], tmp_path: Path) -> None:
    kills = kill_and_resume(fakes, tmp_path / "out", environ, number, 2, (1.0, 4.0), "--parts", "steady")
    parts = results(tmp_path / "out")["parts"]
    assert parts["steady"]["status"] == "done"
    assert list(parts["steady"]["values"]) == [f"number {n}" for n in range(40)]
    assert kills >= 1


def kill_and_resume(
    kit: Path, out: Path, environ: dict[str, str], number: int, times: int, within: tuple[float, float], *words: str
) -> int:
    """Ends visits at random moments, then lets one go on to its end; how many were ended."""
    dice, ended = random.Random(7), 0
    command = [sys.executable, str(kit / "run.py"), "--device", "cpu", "--quick", "--out", str(out), *words]
    for _ in range(times):
        more = ["--resume"] if (out / "gpu-check.json").exists() else []
        process = subprocess.Popen([*command, *more], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(dice.uniform(*within))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.wait(30)
            ended += 1
    time.sleep(1.0)  # a part whose visit was killed ends itself
    more = ["--resume"] if (out / "gpu-check.json").exists() else []
    done = visit(kit, out, environ, *words, *more, timeout=900)
    while done.returncode == 75:
        done = visit(kit, out, environ, *words, "--resume", timeout=900)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return ended


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_whole_kit_killed_at_20_random_moments_is_complete(environ: dict[str, str], tmp_path: Path) -> None:
    """With the wheels that pip takes for this Python."""
    kit = tmp_path / "kit"
    made = [
        sys.executable,
        str(gpu_kit.ROOT / "comparisons/gpu_kit.py"),
        "--out",
        str(kit),
        "--python-tag",
        gpu_check_tag(),
    ]
    subprocess.run(made, check=True, timeout=600)
    assert kill_and_resume(kit, tmp_path / "out", environ, signal.SIGKILL, 20, (4.0, 13.0)) >= 18
    parts = results(tmp_path / "out")["parts"]
    assert {record["status"] for record in parts.values()} == {"done"}
    errors = {
        f"{name}: {key}": value["error"]
        for name, record in parts.items()
        for key, value in record["values"].items()
        if isinstance(value, dict) and "error" in value
    }
    # What a CPU's torch lacks.
    assert set(errors) <= {"fp8: blockwise 128", "mask-trap: memory-efficient"}, errors
