"""The ledger of a real run that is killed twice, beside what was done to it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from runs import descendants, end, run_data, start_cli, steps_done, wait_for, write_run
from scalewright.goodput.ledger import read_ledger

PAUSE = 0.1  # seconds of a step that a user's own loss sleeps
APART = 0.5  # seconds of a part that may differ from what was done


def train_until(folder: Path, step: int) -> tuple[Any, float]:
    """The command, when it has come to a step; and when it was started."""
    begun = time.time()
    process = start_cli(folder, "train", str(folder / "run.yaml"))
    wait_for(lambda: steps_done(folder / "out") >= step or process.poll() is not None, 120, f"step {step}")
    return process, begun


def lost(folder: Path, after: int) -> float:
    """Seconds of the steps that stand in metrics.jsonl after a step: they will be done again."""
    lines = map(json.loads, (folder / "out" / "metrics.jsonl").read_text().splitlines())
    return sum(row["step_time_s"] for row in lines if row["kind"] == "train" and row["step"] > after)


@pytest.mark.slow
def test_each_part_is_what_was_done_to_the_run(tmp_path):
    """A rank is killed and the fault noted; then all at once, and nobody notes it. Saved every 10 steps."""
    loss = {"python": "parts:fragile", "pause": PAUSE}
    layout = {"devices": 2, "zero_stage": 0, "micro_batch": 4}
    write_run(tmp_path, run_data(
        tmp_path, layout=layout, loss=loss, checkpoint={"every": 10}, train={"steps": 40, "valid_every": 20},
    ))  # fmt: skip
    truth = {"lost_work": 0.0, "detect": 0.0, "restart": 0.0}
    process, first = train_until(tmp_path, 14)
    os.kill(descendants(process.pid)[-1], signal.SIGKILL)  # the last rank that was started
    process.wait(60)
    noted = time.time()
    truth["lost_work"] += lost(tmp_path, 10)
    time.sleep(1.0)
    again, begun = train_until(tmp_path, 26)
    truth["restart"] += begun - noted
    end(again)
    killed = time.time()
    truth["lost_work"] += lost(tmp_path, 20)
    time.sleep(2.0)
    last, begun = train_until(tmp_path, 40)
    truth["detect"] += begun - killed
    assert last.wait(60) == 0
    ended = time.time()
    found = read_ledger(tmp_path / "out")
    assert found.wall_s == pytest.approx(ended - first, abs=3 * APART)  # processes leave after their last line
    assert sum(found.seconds.values()) == pytest.approx(found.wall_s, rel=1e-3)
    assert found.seconds["lost_work"] == pytest.approx(truth["lost_work"], abs=APART)
    steps = lost(tmp_path, 0)  # of all steps that stand: each once, with the pause that it waits at least
    assert steps > 40 * PAUSE
    assert found.seconds["productive"] + found.seconds["compile"] == pytest.approx(steps, abs=APART)
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    starts = sum(event["time"] - event["began"] - event["load_s"] for event in events if "began" in event)
    assert found.seconds["restart"] == pytest.approx(truth["restart"] + starts, abs=APART)
    fault = next(event["time"] for event in events if event["kind"] == "fault" and "killed" in event["message"])
    signs = next(event["until"] for event in events if event["kind"] == "lost")
    assert found.seconds["detect"] == pytest.approx(truth["detect"] + fault - signs, abs=APART)
    assert [attempt.ended for attempt in found.attempts] == ["fault", "unknown", "finish"]
    assert found.seconds["evaluate"] > 0
    assert found.seconds["load"] > 0
    assert found.seconds["idle"] < 1.5
