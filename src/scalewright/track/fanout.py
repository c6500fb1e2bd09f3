"""Between a run and its trackers: the loop never waits, and a tracker's failure stays its own.

    loop ── log(row) ──► Feeder ──thread──► MLflow
                    ├──► Feeder ──thread──► TensorBoard      track: {mlflow: true, wandb: false} ──► [MlflowTracker]
                    └──► Feeder ──thread──► W&B              each is imported only when it is switched on

A failure is an event of the run, `{"kind": "tracker", "name": …, "error": …}`, and a line on screen. One tracker's
thread: rows go in without waiting, and come out in batches.

    loop ── put: append to a deque, < 1 µs ──►[ … bounded; the oldest is dropped … ]
                                                   │ every 10 s, in batches
                                                thread ──► start · log · event · finish
    it raises  ─► an event; the batch is kept, and tried again after 10, 20, 40 … 300 s
    it answers ─► an event, and the rows that have waited are handed over
    at the end ─► one more try; a tracker that fails then, or hangs, is left behind, and an event records it

A server that is restarted thus loses nothing; one that stays away costs comfort alone, since every row is in
metrics.jsonl. A tracker costs processor time (MLflow's database about 15 ms a batch and 1 ms a row): batches are few,
and a round takes at most 5 rows a second. Further rows of a faster loop wait for the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import RunError, UserError, install
from scalewright.spec.run import RunSpec
from scalewright.track.events import EventsFile
from scalewright.track.lines import Row
from scalewright.track.store import describe_error, find_store
from scalewright.track.tracker import Status, Target, Tracker


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
                self._note(feeder.name, error=f"did not finish in time and was left behind{feeder.lost}")
        return all(ended)

    def _note(self, name: str, **fields: Any) -> None:
        if self._events is not None:
            with contextlib.suppress(RunError, ValueError):  # a full disk, or a file closed meanwhile
                self._events.write("tracker", name=name, **fields)
        words = fields.get("error") or fields.get("message")
        if words and self._tell is not None:
            self._tell(f"{name} {words}")


def open_trackers(
    run: RunSpec,
    folder: Path,
    *,
    environment: Mapping[str, Any] | None = None,
    resume_step: int = 0,
    variables: Mapping[str, str] | None = None,
) -> list[Tracker]:
    """The trackers that `run.track` names, not yet started; UserError when one isn't installed.

    `variables` are those of the environment that `track/store.py` names.
    """
    store = find_store(run.track, variables)
    target = Target(run.name, folder, run.dump(), environment or {}, resume_step, store)
    wanted = {"mlflow": run.track.mlflow, "tensorboard": run.track.tensorboard, "wandb": run.track.wandb}
    for name, enabled in wanted.items():
        if enabled and importlib.util.find_spec(name) is None:
            advice = f"{install('track')}, or set it to false"
            raise UserError(f"{name} is not installed", f"track.{name}", advice)
    trackers: list[Tracker] = []
    if run.track.mlflow:
        from scalewright.track.mlflow import MlflowTracker

        trackers.append(MlflowTracker(target))
    if run.track.tensorboard:
        from scalewright.track.tensorboard import TensorBoardTracker

        trackers.append(TensorBoardTracker(target))
    if run.track.wandb:
        from scalewright.track.wandb import WandbTracker

        trackers.append(WandbTracker(target))
    return trackers


Item = tuple[float, Row, bool]  # (time, row or event, whether it is an event)
Note = Callable[..., None]  # (name, **fields of a `tracker` event)
LONGEST_PAUSE_S = 300.0  # between two tries
STUCK_S = 5.0  # at the end, a call that takes rows longer than this isn't waited for


class Feeder:
    def __init__(self, tracker: Tracker, note: Note, capacity: int, every_s: float, rows_per_round: int) -> None:
        self.name = tracker.name
        self.dropped = 0
        self._tracker, self._note = tracker, note
        self._queue: deque[Item] = deque(maxlen=capacity)  # append and popleft are atomic; no lock is held
        self._batch: list[Item] = []  # taken from the queue, not yet handed over
        self._capacity, self._every_s, self._rows_per_round = capacity, every_s, rows_per_round
        self._closing = threading.Event()
        self._end: tuple[Status, tuple[Path, ...]] = ("finished", ())
        self._started = False
        self._failures = 0  # in a row
        self._call_began: float | None = None  # when the present call of `log` or `event` began
        self._thread = threading.Thread(target=self._run, name=f"tracker-{tracker.name}", daemon=True)
        self._thread.start()

    def put(self, row: Row, is_event: bool) -> None:
        """Queues one row or event. Never blocks, never raises."""
        if len(self._queue) >= self._capacity:
            self.dropped += 1  # the deque drops the oldest by itself
        self._queue.append((time.time(), row, is_event))

    def close(self, status: Status, files: Sequence[Path]) -> None:
        """Makes the thread hand over the remaining rows, and end; doesn't wait."""
        self._end = (status, tuple(files))
        self._closing.set()

    def wait(self, deadline: float) -> bool:
        """Waits for the end until `deadline` (monotonic seconds), or until a call hangs; whether it came."""
        while self._thread.is_alive() and time.monotonic() < deadline:
            began = self._call_began
            if began is not None and time.monotonic() - began > STUCK_S:
                break
            self._thread.join(0.05)
        return not self._thread.is_alive()

    @property
    def lost(self) -> str:
        """Words for the rows that the tracker doesn't have; empty where it has all."""
        rows = sum(not is_event for _, _, is_event in [*self._batch, *self._queue])
        return f"; {counted(rows, 'rows are')} in metrics.jsonl alone" if rows else ""

    def _run(self) -> None:
        self._attempt(0)
        while not self._closing.wait(self._pause()):
            self._attempt(self._rows_per_round)
        if self._attempt(self._capacity, last=True):
            self._attempt(0, self._finish, last=True)

    def _finish(self) -> None:
        status, files = self._end
        self._tracker.finish(status, [file for file in files if file.exists()])

    def _pause(self) -> float:
        return float(min(self._every_s * 2 ** max(self._failures - 1, 0), max(LONGEST_PAUSE_S, self._every_s)))

    def _attempt(self, most: int, then: Callable[[], None] | None = None, last: bool = False) -> bool:
        """Starts the tracker if need be, hands over at most `most` rows, records a failure."""
        try:
            if not self._started:
                self._tracker.start()
                self._started = True
            self._hand_over(most)
            if then is not None:
                then()
        except (Exception, SystemExit) as error:  # of any library: a run doesn't end for it
            self._call_began = None
            self._failures += 1
            self._note_failure(describe_error(error), last)
            return False
        if self._failures:
            self._note(self.name, message="answers again")
            self._failures = 0
        return True

    def _note_failure(self, why: str, last: bool) -> None:
        if last:
            self._note(self.name, error=f"switched off: {why}{self.lost}")
        elif self._failures == 1 and not self._closing.is_set():  # else the last attempt follows at once
            self._note(self.name, error=f"failed: {why}; rows wait, and it is tried again")

    def _hand_over(self, most: int) -> None:
        """Passes the batch and at most `most` items of the queue on, rows in batches between events."""
        while True:
            if not self._batch:
                count = min(most, len(self._queue))
                self._batch = [self._queue.popleft() for _ in range(count)]
                most -= count
            if not self._batch:
                return
            while self._batch:
                self._call_began = time.monotonic()
                del self._batch[: self._pass_on(self._batch)]
                self._call_began = None

    def _pass_on(self, items: list[Item]) -> int:
        """Hands over the first event, or all rows before the first event; how many items that were."""
        if items[0][2]:
            self._tracker.event(items[0][1])
            return 1
        entries = [(moment, row) for moment, row, _ in takewhile(lambda item: not item[2], items)]
        self._tracker.log(entries)
        return len(entries)
