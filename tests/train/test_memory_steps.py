"""`checkpoint.memory_every`: a run whose processes died goes on from memory, bit for bit, with no save."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forked import fork_cli
from runs import assert_same_bits, bits, end, events, run, run_data, steps_done, wait_for, weights, write_run
from scalewright.checkpoint import memory
from scalewright.checkpoint.format import committed

pytestmark = pytest.mark.skipif(not memory.SHARED.is_dir(), reason="keeps steps under /dev/shm")
ADAMW = {"name": "adamw", "lr": 1e-3}


@pytest.fixture(autouse=True)
def _taken_away(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(memory.root_of(tmp_path / "out"), ignore_errors=True)


def kept(out: Path) -> set[int]:
    """The steps whose part of rank 0 is counted."""
    parts = memory.root_of(out).glob("set-*/part-00000.json")
    return {json.loads(part.read_text())["step"] for part in parts}


class DiedError(Exception):
    """A rank that came to its end."""


def die_at(step: int, out: Path) -> Any:
    def tell(row: dict[str, Any]) -> None:
        if row["step"] == step:
            wait_for(lambda: step - 1 in kept(out), 20)
            raise DiedError

    return tell


def test_a_run_goes_on_from_memory_alone(tmp_path):
    """It dies in step 6 and again in step 9; neither start finds a save."""
    data = run_data(
        tmp_path, checkpoint={"memory_every": 1, "at_end": False}, optimizer=ADAMW, train={"steps": 10},
        layout={"micro_batch": 8},
    )  # fmt: skip
    out, control = tmp_path / "out", tmp_path / "control"
    run({**data, "out_dir": str(control), "checkpoint": {"at_end": True}})
    for step, resumed in ((6, None), (9, 5)):
        with pytest.raises(DiedError):
            run(data, on_step=die_at(step, out))
        assert [event["step"] for event in events(out, "resume")] == ([] if resumed is None else [resumed])
    ended = run({**data, "checkpoint": {"memory_every": 1, "at_end": True}})
    assert ended.resumed_from == 8
    assert not memory.root_of(out).exists()
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))
    assert not [event for event in events(out, "fault") if "memory" in event.get("message", "")]


def test_what_is_damaged_or_of_another_run_is_not_taken(tmp_path):
    data = run_data(
        tmp_path, checkpoint={"memory_every": 1, "every": 2, "at_end": True}, train={"steps": 8},
        layout={"micro_batch": 8},
    )  # fmt: skip
    out = tmp_path / "out"
    with pytest.raises(DiedError):
        run(data, on_step=die_at(6, out))
    root = memory.root_of(out)
    assert kept(out) == {4, 5}
    assert memory.newest(out, {"another"}) is None
    (newer,) = (part.parent for part in root.glob("set-*/part-00000.json") if json.loads(part.read_text())["step"] == 5)
    file = next(newer.glob("model-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert run(data).resumed_from == 4  # the disk's: memory's step 5 is damaged
    assert [folder.name[-1] for folder in committed(out / "checkpoints")] == ["8", "6"]


def test_without_room_the_run_says_so_and_trains_on(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    data = run_data(tmp_path, checkpoint={"memory_every": 1}, train={"steps": 4}, layout={"micro_batch": 8})
    run(data)
    (fault,) = events(tmp_path / "out", "fault")
    assert "no steps are kept in memory from now on: No space left on device (rank 0)" in fault["message"]
    assert not memory.root_of(tmp_path / "out").exists()


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_a_step_or_two(tmp_path):
    """kill -9 of one of two; the same command goes on, and the weights are those of a run that wasn't disturbed."""
    data = run_data(
        tmp_path, checkpoint={"memory_every": 1, "at_end": True}, optimizer=ADAMW, train={"steps": 400},
        layout={"devices": 2, "zero_stage": 3, "micro_batch": 4},
    )  # fmt: skip
    out, control = tmp_path / "out", tmp_path / "control"
    run({**data, "out_dir": str(control)})
    process = fork_cli(tmp_path, "train", str(write_run(tmp_path, data)))
    try:
        wait_for(lambda: steps_done(out) >= 30)
        os.kill(events(out, "start")[0]["pid"], signal.SIGKILL)  # rank 0
        process.wait(60)
        done = steps_done(out)
    finally:
        end(process)
    resumed = run(data).resumed_from
    assert resumed is not None
    assert done - 2 <= resumed <= done
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))
