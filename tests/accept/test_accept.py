"""A whole acceptance on CPU processes: alone, under torchrun, and with what must fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runs import run_data

COMMAND = [sys.executable, "-m", "scalewright", "accept"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
            "-m", "scalewright", "accept"]  # fmt: skip
NAMES = ["doctor", "devices", "pairs", "links", "loss", "training", "resume"]


def run_file(folder: Path, **changes: Any) -> Path:
    path = folder / "run.yaml"
    layout = {"devices": 2, "zero_stage": 2, "global_batch": 8}
    path.write_text(json.dumps(run_data(folder, layout=layout, **changes)))
    return path


def accept(command: list[str], file: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(file), "--json", *flags], env=environ, capture_output=True, text=True, timeout=400
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in answer["checks"]}


def check(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in answer["checks"] if entry["name"] == name)


@pytest.mark.slow
@pytest.mark.parametrize("command", [COMMAND, TORCHRUN], ids=["alone", "torchrun"])
def test_a_sound_machine_is_accepted(tmp_path: Path, command: list[str]) -> None:
    out = tmp_path / "accept"
    code, answer = accept(command, run_file(tmp_path), "--out", str(out))
    assert [entry["name"] for entry in answer["checks"]] == NAMES
    for name in ("pairs", "links", "loss", "resume"):  # the rest depends on the machine
        assert check(answer, name)["state"] == "passed", check(answer, name)
    assert check(answer, "training")["state"] in ("passed", "warned")
    assert check(answer, "resume")["figures"]["worst"] == 0
    assert check(answer, "resume")["figures"]["resumed_from"] >= 4
    assert code == (0 if answer["ok"] else 1)
    assert "bitwise equal" in (out / "acceptance.html").read_text()
    assert not list(out.glob("*/checkpoints"))


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "accept"
    out.mkdir()
    done = subprocess.run(
        [*COMMAND, str(run_file(tmp_path)), "--out", str(out)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert "name a new one with --out" in done.stderr
    assert not list(out.iterdir())


@pytest.mark.slow
def test_a_run_that_cannot_start_fails_with_its_reason(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    data = json.loads(file.read_text())
    data["data"]["train"][0]["path"] = str(tmp_path / "nowhere.npy")
    file.write_text(json.dumps(data))
    code, answer = accept(COMMAND, file, "--out", str(tmp_path / "accept"))
    assert code == 1
    assert check(answer, "resume")["state"] == "failed"
    assert "nowhere.npy" in check(answer, "resume")["words"]
