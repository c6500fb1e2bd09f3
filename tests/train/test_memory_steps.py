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
from launch.test_elastic_agents import Nodes
from runs import assert_same_bits, bits, end, events, run, run_data, steps_done, wait_for, weights, write_run
from scalewright.checkpoint.format import committed
from scalewright.checkpoint.memory import root_of
from scalewright.launch.settings import memory_folder

pytestmark = pytest.mark.skipif(not memory_folder().is_dir(), reason="keeps steps under /dev/shm")
ADAMW = {"name": "adamw", "lr": 1e-3}


@pytest.fixture(autouse=True)
def _taken_away(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(root_of(tmp_path / "out"), ignore_errors=True)


def kept(out: Path) -> set[int]:
    """The steps whose part of rank 0 is counted."""
    parts = root_of(out).glob("*-[01]/part-00000.json")
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
    assert not root_of(out).exists()
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
    root = root_of(out)
    assert kept(out) == {4, 5}
    (newer,) = (
        part.parent for part in root.glob("*-[01]/part-00000.json") if json.loads(part.read_text())["step"] == 5
    )
    file = next(newer.glob("model-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert run(data).resumed_from == 4  # the disk's: memory's step 5 is damaged
    assert "passed over step 5 in the nodes' memory: it is damaged" in {e["message"] for e in events(out, "fault")}
    assert [folder.name[-1] for folder in committed(out / "checkpoints")] == ["8", "6"]


def test_without_room_the_run_says_so_and_trains_on(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    data = run_data(tmp_path, checkpoint={"memory_every": 1}, train={"steps": 4}, layout={"micro_batch": 8})
    run(data)
    (fault,) = events(tmp_path / "out", "fault")
    assert "no steps are kept in memory from now on: No space left on device (rank 0)" in fault["message"]
    assert not root_of(tmp_path / "out").exists()


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


@pytest.mark.slow
@pytest.mark.timeout(400)  # two worlds, whose ranks import torch anew
def test_a_lost_node_costs_a_step_or_two_and_reads_no_disk(tmp_path):
    """Two agents, each a node with its own memory. One is killed, with its rank, and its memory is gone; another comes
    in its place. What both go on from is node 0's memory, with node 1's part from the copy there; that no save is read
    shows in that all are damaged by then, and nobody says so."""
    data = run_data(
        tmp_path, checkpoint={"memory_every": 1, "every": 7, "at_end": True}, optimizer=ADAMW, train={"steps": 40},
        layout={"devices": 2, "zero_stage": 3, "micro_batch": 4}, launch={"preflight": "off"},
        loss={"python": "parts:fragile", "pause": 0.2},
    )  # fmt: skip
    out, control = tmp_path / "out", tmp_path / "control"
    agents = Nodes(tmp_path, write_run(tmp_path, data), "2:2")
    shelves = [tmp_path / name for name in ("node-0", "node-1", "node-2")]
    for shelf in shelves:
        shelf.mkdir()
    try:
        agents.add(SCALEWRIGHT_MEMORY=str(shelves[0]))
        wait_for(lambda: agents.meets, 60, agents.logs())  # at the first, which stays
        agents.add(SCALEWRIGHT_MEMORY=str(shelves[1]))
        wait_for(lambda: steps_done(out) >= 10, 120, agents.logs())
        agents.kill(1)
        shutil.rmtree(shelves[1])
        for file in (out / "checkpoints").rglob("*.safetensors"):
            file.write_bytes(bytes(file.stat().st_size))
        done = steps_done(out)
        agents.add(SCALEWRIGHT_MEMORY=str(shelves[2]))
        wait_for(lambda: bool(events(out, "resume")), 120, agents.logs())
        (resumed,) = events(out, "resume")
        assert agents.agents[0].wait(120) == 0, agents.logs()
    finally:
        for agent in agents.agents:
            end(agent)
    assert done - 2 <= resumed["step"] <= done
    assert resumed["path"].startswith(str(shelves[0]))
    (told,) = events(out, "memory")
    assert told["copies"] == 1
    faults = [event["message"] for event in events(out, "fault")]
    assert not [text for text in faults if "memory" in text or "skipped" in text]
    run({**data, "out_dir": str(control), "loss": {"python": "parts:fragile"}})
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))
