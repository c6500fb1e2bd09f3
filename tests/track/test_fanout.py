"""A tracker may raise, block or fall behind: the run neither stops nor waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from runs import wait_for
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout, Feeder
from scalewright.track.lines import Row
from scalewright.track.tracker import Entry, Status


class Recorder:
    """Keeps what it is given."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[Row] = []
        self.batches = 0
        self.files: list[Path] = []
        self.thread = ""

    def start(self) -> None:
        self.calls.append("start")
        self.thread = threading.current_thread().name

    def log(self, entries: Sequence[Entry]) -> None:
        self.batches += 1
        self.rows += [row for _, row in entries]
        self.calls.append("log")

    def event(self, event: Row) -> None:
        self.calls.append(f"event {event['kind']}")

    def finish(self, status: Status, files: Sequence[Path]) -> None:
        self.calls.append(f"finish {status}")
        self.files = list(files)


class Broken(Recorder):
    name = "broken"

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def log(self, entries: Sequence[Entry]) -> None:
        super().log(entries)
        if self.where == "log":
            raise ConnectionError("the server has gone")

    def start(self) -> None:
        if self.where == "start":
            raise SystemExit(1)

    def finish(self, status: Status, files: Sequence[Path]) -> None:
        if self.where == "finish":
            raise OSError("no space")


class Blocked(Recorder):
    name = "blocked"

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def log(self, entries: Sequence[Entry]) -> None:
        self.release.wait(60)
        super().log(entries)


def rows(count: int) -> list[dict[str, object]]:
    return [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, count + 1)]


def test_a_failure_at_the_end_of_a_short_run_is_told_once() -> None:
    """The first try, still at work when the run ends, fails; the last one follows at once."""
    told: list[str] = []
    release = threading.Event()

    class Slow(Recorder):
        def start(self) -> None:
            release.wait(60)
            raise ConnectionError("the server has gone")

    feeder = Feeder(Slow(), lambda name, **fields: told.append(fields["error"]), 10_000, 10.0, 50)
    feeder.put({"kind": "train", "step": 1}, False)
    feeder.close("finished", ())
    release.set()
    assert feeder.wait(time.monotonic() + 60)
    (line,) = told
    assert line.startswith("switched off: ")
    assert "1 row is in metrics.jsonl alone" in line


def test_everything_arrives_in_order_in_batches_from_one_other_thread(tmp_path: Path) -> None:
    recorder, report = Recorder(), tmp_path / "report.html"
    report.write_text("x")
    fanout = Fanout([recorder], every_s=0.02)
    for row in rows(500):
        fanout.log(row)
    fanout.event({"kind": "save", "step": 500})
    fanout.log({"kind": "valid", "step": 500, "loss": 2.0})
    assert fanout.close("stopped", [report, tmp_path / "missing.html"])
    assert [row["step"] for row in recorder.rows] == [*range(1, 501), 500]
    assert recorder.batches < 50
    assert recorder.calls[0] == "start"
    assert recorder.calls[-3:] == ["event save", "log", "finish stopped"]
    assert recorder.files == [report]
    assert recorder.thread == "tracker-recorder"
    assert fanout._feeders[0].dropped == 0


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_raises_fails_alone_and_keeps_its_rows(tmp_path: Path, where: str) -> None:
    events, lines = EventsFile(tmp_path / "events.jsonl"), []
    broken, healthy = Broken(where), Recorder()
    fanout = Fanout([broken, healthy], events, every_s=0.02, tell=lines.append)
    for row in rows(3):
        fanout.log(row)
        time.sleep(0.05)
    assert fanout.close()
    assert len(healthy.rows) == 3
    assert healthy.calls[-1] == "finish finished"
    found = read_jsonl(events.path)
    assert {(event["kind"], event["name"]) for event in found} == {("tracker", "broken")}
    assert "switched off" in found[-1]["error"]
    if where != "finish":  # it was tried again, and said once
        assert ["failed: " in event["error"] for event in found] == [True, False]
        assert "3 rows are in metrics.jsonl alone" in found[-1]["error"]
    assert lines == [f"broken {event['error']}" for event in found]


class Restarted(Recorder):
    """A server that is away for a while: its calls fail, and then don't."""

    name = "restarted"

    def __init__(self) -> None:
        super().__init__()
        self.away = True
        self.failures = 0

    def log(self, entries: Sequence[Entry]) -> None:
        if self.away:
            self.failures += 1
            raise ConnectionError("refused")
        super().log(entries)


def test_a_server_that_comes_back_gets_every_row_once_in_order(tmp_path: Path) -> None:
    events = EventsFile(tmp_path / "events.jsonl")
    tracker = Restarted()
    fanout = Fanout([tracker], events, every_s=0.01)
    for row in rows(20):
        fanout.log(row)
        if row["step"] == 10:
            wait_for(lambda: tracker.failures >= 2, what="a second try")
            fanout.event({"kind": "save", "step": 10})
            tracker.away = False
    wait_for(lambda: len(tracker.rows) > 0, what="the tracker to be tried again")
    assert fanout.close()
    assert [row["step"] for row in tracker.rows] == list(range(1, 21))
    assert tracker.calls.count("event save") == 1
    assert [sorted(event.keys() & {"error", "message"}) for event in read_jsonl(events.path)] == [
        ["error"],
        ["message"],
    ]


def test_a_tracker_that_blocks_costs_the_loop_nothing_and_memory_is_bounded(tmp_path: Path) -> None:
    events = EventsFile(tmp_path / "events.jsonl")
    free = Fanout([Recorder()], every_s=0.01)
    blocked = Blocked()
    stuck = Fanout([blocked], events, capacity=100, every_s=0.01)
    stuck.log({"kind": "train", "step": 0})
    time.sleep(0.2)  # it is in the tracker's hands now
    begin = time.perf_counter()
    for row in rows(5000):
        stuck.log(row)
    while_blocked = time.perf_counter() - begin
    begin = time.perf_counter()
    for row in rows(5000):
        free.log(row)
    while_free = time.perf_counter() - begin
    assert while_blocked < 10 * while_free + 0.1  # 60 s if a put could wait; the slack is for a busy machine
    assert stuck._feeders[0].dropped == 4900
    begin = time.perf_counter()
    assert not stuck.close(timeout_s=0.2)
    assert time.perf_counter() - begin < 5
    assert [(e["name"], e.get("dropped")) for e in read_jsonl(events.path)] == [("blocked", 4900), ("blocked", None)]
    blocked.release.set()
    assert free.close()


def test_after_a_block_the_newest_rows_are_there() -> None:
    blocked = Blocked()
    fanout = Fanout([blocked], capacity=10, every_s=0.01)
    fanout.log({"kind": "train", "step": 0})
    time.sleep(0.2)
    for row in rows(50):
        fanout.log(row)
    blocked.release.set()
    fanout.close()
    assert [row["step"] for row in blocked.rows] == [0, *range(41, 51)]


def test_a_fast_loop_is_followed_slowly_and_caught_up_with_at_the_end() -> None:
    recorder = Recorder()
    fanout = Fanout([recorder], every_s=0.05, rows_per_round=7)
    for row in rows(400):
        fanout.log(row)
    deadline = time.monotonic() + 30
    while not recorder.rows and time.monotonic() < deadline:
        time.sleep(0.01)
    on_the_way = len(recorder.rows)
    assert 7 <= on_the_way < 400  # 7 a round: 57 rounds of 0.05 s would be needed for all
    assert on_the_way % 7 == 0
    assert fanout.close()
    assert [row["step"] for row in recorder.rows] == list(range(1, 401))


def test_without_trackers_there_is_no_thread() -> None:
    before = threading.active_count()
    fanout = Fanout([])
    fanout.log({"kind": "train", "step": 1})
    assert threading.active_count() == before
    assert fanout.close()


def test_a_put_is_cheap() -> None:
    fanout = Fanout([Recorder()])
    row = rows(1)[0]
    times = []
    for _ in range(1000):
        begin = time.perf_counter()
        fanout.log(row)
        times.append(time.perf_counter() - begin)
    fanout.close()
    assert sorted(times)[500] < 10e-6  # one append: under 1 µs on a quiet machine
