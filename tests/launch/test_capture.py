"""`scalewright record` around scripts that know nothing of it: traces, exit codes, reasons for none."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.launch.capture.command import INJECTED, why_none

SCRIPT = """
import os, sys, torch, torch.distributed as dist
several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")
network, steps = torch.nn.Linear(8, 8), int(sys.argv[1])
optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in network.parameters()]  # two: still one step
for step in range(steps):
    network(torch.ones(2, 8)).sum().backward()
    for weight in network.parameters() if several else []:
        dist.all_reduce(weight.grad)
    for optimizer in optimizers:
        optimizer.step()
sys.exit(3 if steps == 7 else 0)
"""


def record(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [path, environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "scalewright", "record", "--out", str(folder / "out"), *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=200, check=False)


def events(path: Path) -> list[dict[str, object]]:
    loaded: list[dict[str, object]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return loaded


def test_steps_of_a_script_and_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.stderr.write('theirs ran')")
    options = ("--after", "2", "--steps", "3", "--", sys.executable, "script.py", "7")
    result = record(tmp_path, *options, path=str(tmp_path / "site"))
    assert result.returncode == 3
    assert "theirs ran" in result.stderr
    assert result.stderr.splitlines()[-1].endswith(f"a trace of steps 3 to 5: scalewright diagnose {tmp_path}/out")
    (trace,) = (tmp_path / "out").iterdir()
    names = {str(event.get("name")) for event in events(trace)}
    assert {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"} < names
    assert not {"ProfilerStep#2", "ProfilerStep#6"} & names


@pytest.mark.slow  # its reason is one of test_reasons, its code that of test_commands_without_a_trace
def test_a_script_that_ends_too_early(tmp_path: Path) -> None:
    result = record(tmp_path, "--after", "5", "--", sys.executable, "script.py", "2")
    assert result.returncode == 1
    assert "it ended after 2 optimizer steps, and step 8 was to be the last one traced" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_chosen_ranks_under_torchrun(tmp_path: Path) -> None:
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    result = record(tmp_path, "--after", "2", "--ranks", "1", "--", *start, "script.py", "6")
    assert result.returncode == 0, result.stderr
    (trace,) = (tmp_path / "out").iterdir()
    assert trace.name == "rank00001.json.gz"
    document = json.loads(gzip.decompress(trace.read_bytes()))
    assert {entry[1] for entry in document["collectives"]} == {"gloo:all_reduce"}


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["no-such-command"], 2, "it can't be started"),
        ([sys.executable, "-c", "1"], 1, "no Python process of the command imported torch.optim"),
    ],
)
def test_commands_without_a_trace(tmp_path: Path, command: list[str], code: int, text: str) -> None:
    result = record(tmp_path, "--", *command)
    assert (result.returncode, text in result.stderr) == (code, True)


@pytest.mark.parametrize(
    ("processes", "ranks", "text"),
    [
        ([{"steps": 2, "rank": 0}], None, "it ended after 2 optimizer steps, and step 13 was to be the last one"),
        ([{"steps": 0, "rank": 0}], None, "no optimizer of torch.optim made a step"),
        ([{"steps": 9, "rank": 0, "asked": False}], [3], "--ranks 3 ran no steps here, but 0 did"),
    ],
)
def test_reasons(processes: list[dict[str, object]], ranks: list[int] | None, text: str) -> None:
    assert text in why_none(processes, 3, 10, ranks)


def test_both_files_are_in_the_package() -> None:
    assert {path.name for path in INJECTED.glob("*.py")} == {"sitecustomize.py", "scalewright_recorder.py"}
