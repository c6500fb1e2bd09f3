"""Between a run and its trackers: the loop never waits, and a tracker's failure stays its own.

    loop ── log(row) ──► Feeder ──thread──► MLflow
                    ├──► Feeder ──thread──► TensorBoard          (track/feeder.py)
                    └──► Feeder ──thread──► W&B

A failure is an event of the run, `{"kind": "tracker", "name": …, "error": …}`, and a line on screen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalewright.spec.errors import RunError
from scalewright.track.events import EventsFile
from scalewright.track.feeder import Feeder
from scalewright.track.lines import Row
from scalewright.track.tracker import Status, Tracker


class Fanout:
    """Feeds every tracker from a thread of its own; with no trackers it does nothing at all.

    `tell` is called with a line for each failure.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        events: EventsFile | None = None,
        capacity: int = 10_000,
        every_s: float = 10.0,
        rows_per_round: int = 50,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._events, self._tell = events, tell
        self._feeders = [Feeder(tracker, self._note, capacity, every_s, rows_per_round) for tracker in trackers]
        self._closed = False

    def log(self, row: Row) -> None:
        """Queues one row of metrics. Never blocks, never raises."""
        for feeder in self._feeders:
            feeder.put(row, False)

    def event(self, event: Row) -> None:
        for feeder in self._feeders:
            feeder.put(event, True)

    def close(self, status: Status = "finished", files: Sequence[Path] = (), timeout_s: float = 30.0) -> bool:
        """Lets the trackers catch up and finish, for at most `timeout_s`; False when one was left behind.

        One that fails has one more try, and one that hangs is left behind within seconds.
        """
        if self._closed:
            return True
        self._closed = True
        deadline = time.monotonic() + timeout_s
        for feeder in self._feeders:
            feeder.close(status, files)
        ended = [feeder.wait(deadline) for feeder in self._feeders]
        for feeder, done in zip(self._feeders, ended, strict=True):
            if feeder.dropped:
                self._note(feeder.name, dropped=feeder.dropped)
            if not done:
                lost = f"; {feeder.waiting} rows are in metrics.jsonl alone" if feeder.waiting else ""
                self._note(feeder.name, error=f"did not finish in time and was left behind{lost}")
        return all(ended)

    def _note(self, name: str, **fields: Any) -> None:
        if self._events is not None:
            with contextlib.suppress(RunError, ValueError):  # a full disk, or a file closed meanwhile
                self._events.write("tracker", name=name, **fields)
        words = fields.get("error") or fields.get("message")
        if words and self._tell is not None:
            self._tell(f"{name} {words}")
