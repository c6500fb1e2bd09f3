"""Where a run's time went, by its folder: against folders whose times are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.goodput.ledger import read_ledger
from scalewright.spec.errors import UserError


def folder(path: Path, events: list[dict[str, Any]], steps: int, seconds: float = 10.0) -> Path:
    """A run's folder with these events, and so many steps of equal length."""
    rows = [{"kind": "train", "step": step, "step_time_s": seconds} for step in range(1, steps + 1)]
    path.mkdir(exist_ok=True)
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_second_is_somewhere(tmp_path: Path) -> None:
    """100 steps of 10 s; dies at step 57 after the save of step 50, stands 300 s; 8 saves of 5 s, 60 s to start."""
    events: list[dict[str, Any]] = [{"time": 0.0, "kind": "start", "step": 0, "world": 16}]
    clock = 60.0
    for save in (25, 50):
        clock += 255
        events.append({"time": clock, "kind": "save", "step": save, "seconds": 5.0})
    clock += 70
    events.append({"time": clock, "kind": "fault", "step": 57, "rank": 3})
    clock += 300
    events.append({"time": clock, "kind": "resume", "step": 50, "world": 16})
    clock += 60
    for save in (75, 100):
        clock += 255
        events.append({"time": clock, "kind": "save", "step": save, "seconds": 5.0})
    events.append({"time": clock, "kind": "finish", "step": 100})
    found = read_ledger(folder(tmp_path, events, 100))
    assert found.wall_s == clock == 60 + 510 + 70 + 300 + 60 + 510
    assert found.work_s == 1000
    assert found.lost_s["save"] == 20
    assert found.lost_s["work"] == 70  # steps 51 to 57
    assert found.lost_s["restart"] == pytest.approx(300 + 60, abs=6)  # the first save's own seconds aren't told apart
    assert found.work_s + sum(found.lost_s.values()) == pytest.approx(clock)
    keys = found.dump()
    assert keys["goodput"] == pytest.approx(1000 / clock)
    assert (found.stops, found.devices, found.step_s) == (1, 16, 10.0)


def test_a_life_that_wrote_no_end_is_named(tmp_path: Path) -> None:
    events = [
        {"time": 0.0, "kind": "start", "step": 0}, {"time": 100.0, "kind": "save", "step": 10, "seconds": 0.0},
        {"time": 500.0, "kind": "resume", "step": 10}, {"time": 600.0, "kind": "finish", "step": 20},
    ]  # fmt: skip
    found = read_ledger(folder(tmp_path, events, 20))
    assert found.lost_s["restart"] == 400
    assert "wrote no reason" in found.notes[0]
    assert found.stops == 1


def test_a_run_that_was_asked_to_stop_didnt_fail(tmp_path: Path) -> None:
    events = [
        {"time": 0.0, "kind": "start", "step": 0}, {"time": 100.0, "kind": "stop", "step": 10, "cause": "SIGTERM"},
        {"time": 150.0, "kind": "resume", "step": 10}, {"time": 250.0, "kind": "finish", "step": 20},
    ]  # fmt: skip
    found = read_ledger(folder(tmp_path, events, 20))
    assert (found.stops, found.lost_s["restart"], found.lost_s["work"]) == (0, 50, 0)
    assert found.dump()["goodput"] == pytest.approx(0.8)


def test_clocks_that_disagree_still_add_up(tmp_path: Path) -> None:
    events = [{"time": 0.0, "kind": "start", "step": 0}, {"time": 50.0, "kind": "finish", "step": 20}]
    found = read_ledger(folder(tmp_path, events, 20))
    assert found.work_s == pytest.approx(50)
    assert "more than the time" in found.notes[0]


def test_a_damaged_folder_gives_what_can_be_read(tmp_path: Path) -> None:
    events = [{"time": 0.0, "kind": "start", "step": 0}, {"time": 300.0, "kind": "finish", "step": 20}]
    path = folder(tmp_path, events, 20)
    for name in ("events.jsonl", "metrics.jsonl"):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(b"\xff{not json\n[1]\nnull\n" + whole + b'{"time": "soon", "kind": 7, "step": nul')
    found = read_ledger(path)
    assert found.work_s == 200
    asynchronous = read_ledger(path, asynchronous=True)
    assert any("asynchronous" in note for note in asynchronous.notes)


@pytest.mark.parametrize(
    "text", ["", "{}\n", '{"time": 1, "kind": "save", "step": 1}\n', '{"kind": "start", "step": 0}\n']
)
def test_a_folder_without_a_start_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(UserError, match="no start of a run"):
        read_ledger(tmp_path)


def test_a_folder_without_steps_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    events = [{"time": 0.0, "kind": "start", "step": 0}, {"time": 5.0, "kind": "fault", "step": 0}]
    with pytest.raises(UserError, match="no steps yet"):
        read_ledger(folder(tmp_path, events, 0))
    with pytest.raises(UserError, match="no such run folder"):
        read_ledger(tmp_path / "nowhere")
