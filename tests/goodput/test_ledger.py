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


def test_all_ten_parts_of_three_attempts(tmp_path: Path) -> None:
    """Every number is planted: an attempt that a fault ends, one that vanishes, one that was asked to stop, one to the
    end; 12 steps of 10 s, each with 1 s of waiting for data, the first of an attempt with 4 s of compiling."""
    row = {"kind": "train", "breakdown_s": {"data": 1.0}}
    firsts = (1, 5, 9)  # of attempts whose first step counts in the end
    rows = [{**row, "step": step, "step_time_s": 10.0 + 4 * (step in firsts)} for step in range(1, 13)]
    events: list[dict[str, Any]] = [
        # 1: 6 s to begin; 4 steps (44 s), a save (2 s); 2 more steps (20 s); found 5 s after, begun again 9 s later
        {"time": 6.0, "kind": "start", "step": 0, "began": 0.0, "load_s": 0.0, "world": 4},
        {"time": 52.0, "kind": "save", "step": 4, "seconds": 2.0},
        {"time": 77.0, "kind": "fault", "message": "worker 2 was killed by SIGKILL"},
        # 2: 7 s to begin, 3 of them reading; 4 steps (44), a validation (3), a save (2); a step (10) that is lost
        {"time": 92.0, "kind": "fault", "step": 4, "message": "skipped a checkpoint"},  # by attempt 2
        {"time": 93.0, "kind": "resume", "step": 4, "began": 86.0, "load_s": 3.0, "world": 4},
        {"time": 93.0, "kind": "lost", "step": 4, "steps": 2, "seconds": 20.0, "until": 72.0},
        {"time": 140.0, "kind": "evaluate", "step": 8, "seconds": 3.0},
        {"time": 142.0, "kind": "save", "step": 8, "seconds": 2.0},
        # 3: begun 11 s after the last sign; 5 s to begin, 2 reading; asked to stop after 2 steps (24) and a save (2)
        {"time": 168.0, "kind": "resume", "step": 8, "began": 163.0, "load_s": 2.0, "world": 4},
        {"time": 168.0, "kind": "lost", "step": 8, "steps": 1, "seconds": 10.0, "until": 152.0},
        {"time": 194.0, "kind": "save", "step": 10, "seconds": 2.0},
        {"time": 194.5, "kind": "stop", "step": 10, "cause": "SIGTERM"},
        # 4: 30 s later; 6 s to begin, 1 reading; a step (10), gone back by itself: a step lost (10); 2 steps (20)
        {"time": 230.5, "kind": "resume", "step": 10, "began": 224.5, "load_s": 1.0, "world": 4},
        {"time": 230.5, "kind": "lost", "step": 10, "steps": 0, "seconds": 0.0, "until": 192.0},
        {"time": 240.5, "kind": "lost", "step": 10, "steps": 1, "seconds": 10.0},
        {"time": 260.5, "kind": "finish", "step": 12},
        {"time": 261.0, "kind": "tracker", "name": "mlflow"},
    ]  # fmt: skip
    path = folder(tmp_path, events, 0)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_ledger(path)
    assert found.seconds == pytest.approx({
        "productive": 12 * 9, "data_wait": 12, "compile": 3 * 4, "save_stall": 6, "evaluate": 3,
        "lost_work": 20 + 10 + 10, "detect": 5 + 11, "restart": 6 + 9 + 4 + 3 + 5, "load": 3 + 2 + 1,
        "idle": 0.5 + 30 + 0.5,
    })  # fmt: skip
    assert sum(found.seconds.values()) == pytest.approx(found.wall_s) == pytest.approx(261)
    assert (found.stops, found.notes) == (2, ())
    assert [attempt.ended for attempt in found.attempts] == ["fault", "unknown", "stop", "finish"]
    assert [(a.begin, a.end, a.first, a.last) for a in found.attempts] == [
        (0, 72, 0, 4), (86, 152, 4, 8), (163, 194.5, 8, 10), (224.5, 261, 10, 12),
    ]  # fmt: skip
    placed = [segment for attempt in found.attempts for segment in attempt.segments]
    ends = [0.0, *(segment.end for segment in placed)]
    assert [segment.begin for segment in placed] == pytest.approx(ends[:-1])  # no gap, and nothing twice
    assert ends[-1] == pytest.approx(261)
    assert [s.part for s in found.attempts[0].segments] == [
        "restart", "productive", "save_stall", "lost_work", "detect", "restart",
    ]  # fmt: skip


def test_a_run_that_goes_on_counts_its_steps_since_the_last_event(tmp_path: Path) -> None:
    events = [{"time": 100.0, "kind": "start", "step": 0, "began": 90.0}, {"time": 141.0, "kind": "save", "step": 4}]
    found = read_ledger(folder(tmp_path, events, 9))
    assert (found.wall_s, found.work_s, found.seconds["restart"]) == (101, 90, 10)
    assert found.attempts[0].ended == "running"


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
