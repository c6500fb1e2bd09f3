"""The run files of examples/: each is legal and rehearses, commands above it exist, the smallest trains."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from scalewright.spec.layout_check import check_layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import load_run

FOLDER = Path(__file__).resolve().parent.parent / "examples"
FILES = sorted(FOLDER.glob("*.yaml"))
QUICK = {"predict", "launch"}  # verbs that need neither data nor minutes


def commands(path: Path) -> list[list[str]]:
    """The command lines of a file's first comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [shlex.split(line.removeprefix("#")) for line in lines if line.startswith("#   ")]


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def example(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_the_folder_has_what_people_copy() -> None:
    assert {path.stem for path in FILES} >= {"smallest", "fsdp", "experts", "finetune", "slurm", "sweep"}


def test_an_example_is_a_legal_run(example: Path) -> None:
    run = load_run(example)
    assert run.name in {example.stem, "llama-8b"}
    check_layout(run.layout, load_model_spec(run.model), run.data.seq_len)


def test_an_example_tells_how_it_is_started(example: Path, call_cli) -> None:
    lines = [line for line in commands(example) if line[0] == "scalewright"]
    assert any(f"examples/{example.name}" in line for line in lines)
    for _, verb, *words in lines:
        shown = call_cli(verb, "--help")
        assert shown.code == 0, verb
        for flag in (word for word in words if word.startswith("--")):
            assert flag in re.findall(r"--[\w-]+", shown.out), f"{verb} {flag}"


def test_quick_commands_run(example: Path, call_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parent)
    for _, verb, *words in commands(example):
        if verb in QUICK:
            answer = call_cli(verb, *words)
            assert answer.code == 0, answer.err


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("finetune", "slurm")]


@pytest.mark.parametrize("name", ["smallest", "fsdp", "experts", "sweep", *SLOW])
def test_an_example_rehearses(name: str, call_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call_cli("train", FOLDER / f"{name}.yaml", "--dry-run", "--json")
    assert answer.code == 0, answer.err
    rehearsed = answer.json()
    assert sum(len(group["ranks"]) for group in rehearsed["groups"]) == rehearsed["world"]


def test_the_smallest_trains(call_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "tokens.npy", np.arange(20_000, dtype=np.uint16) % 2048)
    source = f"[{{path: {tmp_path / 'data' / 'tokens.npy'}, eod: 0}}]"
    answer = call_cli(
        "train", FOLDER / "smallest.yaml", f"data.train={source}", f"data.valid={source}",
        "train.valid_batches=1", "train.steps=3", "lr_schedule.warmup_steps=0", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.json()["step"] == 3
    assert (tmp_path / "runs" / "smallest" / "checkpoints").is_dir()
