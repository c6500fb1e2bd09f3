"""`checkpoint.async`: what is saved is what a run that waits saves, and no fault of a writer ends the run."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from runs import bits, events, merge, rows, run, run_data, small_disk
from scalewright.checkpoint.background import Background
from scalewright.checkpoint.format import committed, read_manifest
from scalewright.checkpoint.verify import verify
from scalewright.spec.errors import RunError, UserError

slow = pytest.mark.slow
BESIDE = {"async": True, "every": 2, "keep": 9}


def tensors(folder: Path) -> dict[str, bytes]:
    """The files of tensors in a checkpoint, and the manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}


LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"optimizer": {"name": "adamw_8bit", "lr": 1e-3}},
    "zero3": {"layout": {"devices": 2, "zero_stage": 3, "micro_batch": 4}, "optimizer": {"momentum": 0.9}},
    "own-module": {
        "layout": {"devices": 2, "zero_stage": 0, "micro_batch": 2},
        "model": {"python": "stateful:build"},
        "train": {"compress": {"powersgd": {"rank": 2}}},
    },
    "islands": {
        "layout": {"devices": 2, "zero_stage": 0, "micro_batch": 4, "dp_replicate": 2},
        "diloco": {"inner_steps": 3},
    },
    "pipeline": {"layout": {"devices": 2, "pp": 2, "zero_stage": 0, "micro_batch": 4}},
}


@pytest.mark.parametrize(
    "name", ["one", "zero3", *(pytest.param(name, marks=slow) for name in ("own-module", "islands", "pipeline"))]
)
def test_every_file_is_that_of_a_run_that_waits(tmp_path, name):
    """Six saves, the last at the end; steps in between change every number."""
    folders = {}
    for kind in ("waits", "beside"):
        saves = {"every": 1, "keep": 9, "at_end": True, "async": kind == "beside"}
        changes = merge({"train": {"steps": 6}, "checkpoint": saves}, LAYOUTS[name])
        data = run_data(tmp_path, **merge(changes, {"out_dir": str(tmp_path / kind)}))
        run(data)
        folders[kind] = committed(tmp_path / kind / "checkpoints")
    assert bits(tmp_path / "waits") == bits(tmp_path / "beside")
    assert [folder.name for folder in folders["beside"]] == [f"step-{step:08d}" for step in range(6, 0, -1)]
    for mine, control in zip(folders["beside"], folders["waits"], strict=True):
        assert tensors(mine) == tensors(control)
        assert verify(mine) == []
    saves = events(tmp_path / "beside", "save")
    assert [save["step"] for save in saves] == [1, 2, 3, 4, 5, 6]
    assert all(save["written_s"] >= save["seconds"] for save in saves[:-1])
    assert "written_s" not in saves[-1]
    assert not events(tmp_path / "beside", "fault")


def at_jobs(monkeypatch: pytest.MonkeyPatch, jobs: dict[int, Callable[[int], object]]) -> None:
    """The writer's process stands still when it gets a job; `jobs` say, by number, what then happens to it."""
    begin, count = Background.begin, itertools.count(1)

    def stopped(self: Background, *arguments: Any) -> None:
        happens = jobs.get(next(count))
        if happens is not None:
            self.start()
            assert self.pid is not None
            os.kill(self.pid, signal.SIGSTOP)
            begin(self, *arguments)
            happens(self.pid)
        else:
            begin(self, *arguments)

    monkeypatch.setattr(Background, "begin", stopped)


def test_a_writer_that_dies_costs_one_save_and_is_replaced(tmp_path, monkeypatch):
    """Twice in a row: the run then waits for one save, and goes back to saves beside it."""
    data = run_data(tmp_path, checkpoint={**BESIDE, "at_end": True}, train={"steps": 10}, layout={"micro_batch": 8})
    at_jobs(monkeypatch, dict.fromkeys((1, 2), lambda pid: os.kill(pid, signal.SIGKILL)))
    run(data)
    out = tmp_path / "out"
    faults = [event["message"] for event in events(out, "fault")]
    assert [message.split(":")[0] for message in faults] == ["step 2", "step 4"]
    assert all("SIGKILL" in message for message in faults)
    assert {event["step"]: "written_s" in event for event in events(out, "save")} == {6: False, 8: True, 10: False}
    assert [folder.name[-2:] for folder in committed(out / "checkpoints")] == ["10", "08", "06"]
    assert len(rows(out)) == 10


def test_a_save_that_lags_is_waited_for_and_told(tmp_path, monkeypatch):
    """The run needs milliseconds for the steps until the next save, and the writer half a second to begin."""
    data = run_data(tmp_path, checkpoint=BESIDE, train={"steps": 5}, layout={"micro_batch": 8})
    at_jobs(monkeypatch, {1: lambda pid: Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()})
    run(data)
    (lags,) = events(tmp_path / "out", "lags")
    assert lags["step"] == 4
    saves = events(tmp_path / "out", "save")
    assert [save["step"] for save in saves] == [2, 4]
    assert saves[1]["seconds"] >= lags["seconds"]
    assert [folder.name[-1] for folder in committed(tmp_path / "out" / "checkpoints")] == ["4", "2"]


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_full_disk_costs_the_save(tmp_path):
    """Two saves don't fit beside each other; the run comes to its end, and says so with its last."""
    disk = tmp_path / "disk"
    if not small_disk(disk):
        pytest.skip("no right to mount a small disk")
    try:
        big = {"hidden_size": 64, "vocab_size": 400}  # 0.8 MiB of weights and momenta a save
        data = run_data(
            tmp_path, out_dir=str(disk / "out"), model=big, checkpoint={**BESIDE, "every": 4},
            optimizer={"momentum": 0.9}, train={"steps": 10}, layout={"micro_batch": 8},
        )  # fmt: skip
        with pytest.raises(RunError, match="cannot save step-00000008: no space left on the disk"):
            run(data)
        assert len(rows(disk / "out")) == 10
        assert [path.name for path in (disk / "out" / "checkpoints").iterdir()] == ["step-00000004"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, timeout=10, check=False)


def test_the_best_need_a_held_out_loss(tmp_path):
    with pytest.raises(UserError, match="keep_best"):
        run(run_data(tmp_path, checkpoint={"every": 2, "keep_best": 1}))


def test_the_best_are_kept(tmp_path):
    """By the loss of the step that was saved; of a run whose rate is far too high the first is the best."""
    data = run_data(
        tmp_path, checkpoint={"every": 2, "keep": 1, "keep_best": 1, "keep_every": 6}, optimizer={"lr": 30.0},
        train={"steps": 8, "valid_every": 2, "valid_batches": 1}, layout={"micro_batch": 8},
    )  # fmt: skip
    run(data)
    losses = {row["step"]: row["loss"] for row in rows(tmp_path / "out", "valid")}
    best = min(losses, key=lambda step: losses[step])
    kept = {read_manifest(folder).step for folder in committed(tmp_path / "out" / "checkpoints")}
    assert kept == {6, 8, best}
    assert best < 8
