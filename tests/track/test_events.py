"""events.jsonl: append only, through half lines, several writers and several lives."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from scalewright.spec.common.jsonl import read_jsonl
from scalewright.track.events import EventsFile


def test_events_append_over_several_lives(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = time.time()
    for life in range(3):
        events = EventsFile(path)
        events.write("start", life=life)
        events.write("save", step=life, path=tmp_path / "checkpoints")
        events.close()
    found = read_jsonl(path)
    assert [event["kind"] for event in found] == ["start", "save"] * 3
    assert found[1]["path"] == str(tmp_path / "checkpoints")
    assert all(before <= event["time"] <= time.time() for event in found)


def test_half_a_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventsFile(path).write("start")
    path.write_bytes(path.read_bytes() + b'{"time": 12.5, "kind": "sa')
    EventsFile(path).write("resume", step=4)
    assert [event["kind"] for event in read_jsonl(path)] == ["start", "resume"]
    assert path.read_text().count("\n") == 3  # nothing that stood there was removed


def test_nonfinite_fields_are_null_however_deep(tmp_path: Path) -> None:
    events = EventsFile(tmp_path / "events.jsonl")
    events.write("skip", loss=float("nan"), norms={"layer": [1.0, float("inf")]})
    (event,) = read_jsonl(events.path)
    assert event["loss"] is None
    assert event["norms"] == {"layer": [1.0, None]}


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    def write(name: str) -> None:
        events = EventsFile(path)
        for number in range(200):
            events.write("save", writer=name, number=number, padding="x" * 500)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_jsonl(path)
    for name in "ab":
        assert [event["number"] for event in found if event["writer"] == name] == list(range(200))


def test_a_missing_file_has_no_events(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "none.jsonl") == []
