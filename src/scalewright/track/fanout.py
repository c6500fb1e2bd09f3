"""One thread between a run and its trackers: the loop never waits, and a tracker's failure stays its own.

    loop ── log(row): append to a deque, < 1 µs ──►[ … bounded; the oldest is dropped … ]
                                                        │ every 10 s, in batches
                                                     thread ──► MLflow, TensorBoard, W&B
                                                        └─ an exception: an event, and that tracker is off

Every row is in metrics.jsonl whatever happens here, so that dropping is a loss of comfort, not of data.
A tracker costs processor time (MLflow's database about 15 ms a batch and 1 ms a row): batches are few, and a
round takes at most 5 rows a second. What a faster loop makes beyond that waits in the queue for the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalewright.spec.errors import RunError
from scalewright.track.events import EventsFile
from scalewright.track.lines import Row
from scalewright.track.tracker import Entry, Status, Tracker

Item = tuple[float, Row, bool]  # (time, row or event, whether it is an event)


class Fanout:
    """Feeds every tracker from one background thread; with no trackers it does nothing at all."""

    def __init__(
        self,
        trackers: Sequence[Tracker],
        events: EventsFile | None = None,
        capacity: int = 10_000,
        every_s: float = 10.0,
        rows_per_round: int = 50,
    ) -> None:
        self.dropped = 0
        self._trackers = list(trackers)
        self._events = events
        self._queue: deque[Item] = deque(maxlen=capacity)  # append and popleft are atomic; no lock is held
        self._capacity, self._every_s, self._rows_per_round = capacity, every_s, rows_per_round
        self._closing = threading.Event()
        self._end: tuple[Status, tuple[Path, ...]] = ("finished", ())
        self._busy = ""  # the name of the tracker that is being fed
        self._thread: threading.Thread | None = None
        if self._trackers:
            self._thread = threading.Thread(target=self._run, name="trackers", daemon=True)
            self._thread.start()

    def log(self, row: Row) -> None:
        """Queues one row of metrics. Never blocks, never raises."""
        self._put(row, False)

    def event(self, event: Row) -> None:
        """Queues one event. Never blocks, never raises."""
        self._put(event, True)

    def close(self, status: Status = "finished", files: Sequence[Path] = (), timeout_s: float = 30.0) -> bool:
        """Lets the trackers catch up and finish, for at most `timeout_s`; False when one was left behind."""
        if self._thread is None or self._closing.is_set():
            return True
        self._end = (status, tuple(files))
        self._closing.set()
        self._thread.join(timeout_s)
        if self.dropped:
            self._note("trackers", dropped=self.dropped)
        if self._thread.is_alive():
            self._note(self._busy, error=f"did not finish in {timeout_s:g} s and was left behind")
            return False
        return True

    def _put(self, row: Row, is_event: bool) -> None:
        if self._thread is None:
            return
        if len(self._queue) >= self._capacity:
            self.dropped += 1  # the deque drops the oldest by itself
        self._queue.append((time.time(), row, is_event))

    def _run(self) -> None:
        self._each(lambda tracker: tracker.start())
        while not self._closing.wait(self._every_s):
            self._drain(self._rows_per_round)
        self._drain(self._capacity)
        status, files = self._end
        present = [file for file in files if file.exists()]
        self._each(lambda tracker: tracker.finish(status, present))

    def _drain(self, most: int) -> None:
        """Hands over what is queued by now, at most `most`, rows in batches between the events."""
        entries: list[Entry] = []
        for _ in range(min(len(self._queue), most)):
            moment, row, is_event = self._queue.popleft()
            if not is_event:
                entries.append((moment, row))
                continue
            self._log(entries)
            entries = []
            self._each(lambda tracker, event=row: tracker.event(event))  # type: ignore[misc]
        self._log(entries)

    def _log(self, entries: list[Entry]) -> None:
        if entries:
            self._each(lambda tracker: tracker.log(entries))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        """Calls every tracker; one that raises is noted and dropped."""
        for tracker in list(self._trackers):
            self._busy = tracker.name
            try:
                call(tracker)
            except (Exception, SystemExit) as error:  # whatever a library throws, a run doesn't end for it
                self._trackers.remove(tracker)
                self._note(tracker.name, error=f"switched off: {type(error).__name__}: {error}")

    def _note(self, name: str, **fields: Any) -> None:
        if self._events is not None:
            with contextlib.suppress(RunError, ValueError):  # a full disk, or a file closed meanwhile
                self._events.write("tracker", name=name, **fields)
