"""The record of a run: a row of numbers a step, and its events, to files, screen and trackers.

Rank 0 writes; on other ranks every call does nothing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from scalewright.spec.layout import Layout
from scalewright.track.console import Console
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout
from scalewright.track.lines import LOOK_SECONDS
from scalewright.track.metrics import MetricsFile
from scalewright.track.saved import COPY
from scalewright.track.tracker import Status
from scalewright.train.batches import DataPosition
from scalewright.train.columns import AUX, BUSIEST, DROPPED, ENTROPY, LOSS, MEMORY, NORM, OUTER, SCALE, SKIPPED, TOKENS
from scalewright.train.metrics.expectation import Expectation
from scalewright.train.precision import Peak

Tell = Callable[[str, dict[str, object]], bool | None]  # (kind, row) -> whether the run is to stop


@dataclass
class Record:
    """Where rank 0 writes, and what it needs to turn a step's report into a row."""

    metrics: MetricsFile
    events: EventsFile
    console: Console
    trackers: Fanout
    layout: Layout
    seq_len: int
    flops_per_token: float
    peak: Peak
    place: DataPosition  # where this call began
    expectation: Expectation = field(default_factory=Expectation)  # of a step's time
    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # the newest row of each kind
    tell: Tell | None = None  # the caller's callbacks
    stop_asked: bool = False  # by one of them
    _pending: deque[dict[str, object]] = field(default_factory=deque)  # events of other threads, to hand on
    _peak_too_low: bool = False

    def step(
        self, step: int, report: list[float], rate: float, seconds: float, hash_: str, parts: Mapping[str, float]
    ) -> None:
        """Writes one training row; `parts` are the seconds of this rank's step by what they went to."""
        self._hand_on_pending()
        tokens = self.layout.global_batch * self.seq_len
        place = self.place.after(step, self.layout.global_batch, self.seq_len)
        speed = tokens / seconds if seconds > 0 else 0.0
        row = {
            "kind": "train", "step": step, "samples": place.samples, "tokens": place.tokens,
            "loss_tokens": int(report[TOKENS]), "loss": _finite(report[LOSS]), "aux_loss": _finite(report[AUX]),
            "grad_norm": _finite(report[NORM]), "lr": rate, "step_time_s": seconds, "tokens_per_s": speed,
            "mfu": self._mfu(speed, step), "memory_gib": max(report[MEMORY:]), "sample_ids_hash": hash_,
            "breakdown_s": {name: round(seconds, 7) for name, seconds in parts.items()},
        }  # fmt: skip
        if self.layout.precision == "fp16":
            row["loss_scale"] = report[SCALE]
        if report[BUSIEST]:
            experts = {"load_max": BUSIEST, "entropy": ENTROPY, "drop_share": DROPPED}
            row |= {f"expert_{key}": _finite(report[column]) for key, column in experts.items()}
        if report[OUTER]:
            row["outer_grad_norm"] = _finite(report[OUTER])
        if report[SKIPPED]:
            row["skipped"] = True
        self.expectation.measured(seconds, parts)
        self.console.step(row)
        self._write(row)

    def _mfu(self, tokens_per_s: float, step: int) -> float | None:
        """Model FLOP/s over the peak; None without a peak, or with a measured one that a step surpasses."""
        if not self.peak.flops or self._peak_too_low:
            return None
        reached = tokens_per_s * self.flops_per_token / self.layout.devices
        if reached <= self.peak.flops or self.peak.source != "measured":
            return reached / self.peak.flops
        self._peak_too_low = True
        more = f"a step did {reached / 1e12:.3g} TFLOP/s a device, more than the peak of {self.peak.flops / 1e12:.3g}"
        note = f"no MFU from here on: {more} measured at the start, when the machine must have been busy"
        self.event("note", note, step=step, peak_too_low=self.peak.flops)
        return None

    def experts(self, step: int, loads: Mapping[int, list[int]]) -> None:
        """Writes the tokens of every expert in a step, by layer. Not to trackers, which take numbers."""
        by_layer = {str(layer): loads[layer] for layer in sorted(loads)}
        self.metrics.write({"kind": "experts", "step": step, "loads": by_layer})

    def valid(self, step: int, loss: float, bits_per_byte: float | None) -> None:
        """Writes one validation row."""
        row = {"kind": "valid", "step": step, "loss": loss, "bits_per_byte": bits_per_byte}
        self.console.valid(row)
        self._write(row)

    def _write(self, row: dict[str, object]) -> None:
        self.metrics.write(row)
        self.events.look(every=LOOK_SECONDS)
        self.trackers.log(row)
        kind = str(row["kind"])
        self.last[kind] = row
        self._hand_on(kind, row)

    def _hand_on(self, kind: str, row: dict[str, object]) -> None:
        """Gives a row to the caller's callback, which may ask to stop."""
        if self.tell is not None and self.tell(kind, row):
            self.stop_asked = True

    def event(self, kind: str, message: str = "", **fields: Any) -> None:
        """Writes an event; `message` is also shown."""
        self.event_from_thread(kind, message, **fields)
        self._hand_on_pending()

    def event_from_thread(self, kind: str, message: str = "", **fields: Any) -> None:
        """The same from another thread: trackers and callbacks get the event with the next step. The user's callback
        never runs beside the training then, nor do two threads use the launcher's pipe."""
        self._pending.append(self.events.write(kind, **fields, **({"message": message} if message else {})))
        if message:
            self.console.message(message)

    def _hand_on_pending(self) -> None:
        while self._pending:
            entry = self._pending.popleft()
            self.trackers.event(entry)
            self._hand_on("event", entry)

    def remark(self, text: str | None) -> None:
        """Shows one line about how the run starts, if there is one."""
        if text:
            self.console.message(text)

    def go_back(self, place: DataPosition) -> None:
        """The run goes on from an earlier place: later rows go. Trackers get the new ones beside the old."""
        self.place = place
        self.metrics.go_back(place.step)
        self.lost(place.step)

    def lost(self, step: int, *, opened: bool = False) -> None:
        """Notes the steps that are done again from `step` on; of an attempt before this one, which has been `opened`,
        also its last sign."""
        if (dropped := self.metrics.dropped) is not None:
            keys: dict[str, Any] = {"until": dropped.until} if opened else {}
            self.event("lost", step=step, steps=dropped.steps, seconds=round(dropped.seconds, 6), **keys)

    def copies(self) -> dict[str, bytes]:
        """Copies of all lines for a checkpoint, by file name."""
        return {COPY.format(file.path.name): file.copy() for file in (self.metrics.writer, self.events)}

    def sync(self) -> None:
        """Has all lines on the disk; from any thread."""
        for file in (self.metrics.writer, self.events):
            file.sync()

    def saved(self, step: int, seconds: float, written_s: float | None = None) -> None:
        """Notes a finished checkpoint: the seconds that training stood still for it, and, where it went on meanwhile,
        those until it was written."""
        more: dict[str, Any] = {} if written_s is None else {"written_s": round(written_s, 3)}
        self.event("save", step=step, seconds=round(seconds, 3), **more, path=f"checkpoints/step-{step:08d}")
        self.console.saved(step)

    def close(self, status: Status, step: int, seconds: float, cause: str = "") -> None:
        """Ends every writer; the trackers get a little time to catch up. `cause`: what stopped it."""
        # A callback's error isn't that of a failed run, which has its own.
        with suppress(Exception) if status == "failed" else nullcontext():
            self._hand_on_pending()
        last = self.last.get("train", {})
        step = max(step, int(last.get("step", 0)))
        if status != "failed":  # a failure's event comes from the supervisor or the caller, with its cause
            why = {"cause": cause} if cause else {}
            self.event({"finished": "finish", "stopped": "stop"}[status], step=step, seconds=seconds, **why)
        folder = self.metrics.path.parent
        self.trackers.close(status, [folder / "run.yaml", folder / "metrics.jsonl"])
        if status != "failed" and (compared := self.expectation.words()):
            self.console.message(compared)
        summary = {"steps": step, "loss": last.get("loss"), "seconds": seconds, "out_dir": str(folder)}
        self.console.close(summary if last and status != "failed" else None)
        self.metrics.close()
        self.events.close()


def _finite(value: float) -> float | None:
    """The number, or None for inf and NaN: what they were is in the `nonfinite` event (guard/health.py)."""
    return value if math.isfinite(value) else None


class Clock:
    """Seconds of a step: from the end of the one before, without saving, validation and the writing of traces."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap or restart."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        return seconds

    def restart(self) -> None:
        """Forgets the time since the last lap."""
        self._mark = time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done within belongs to no step, also where a step's numbers are still under way."""
        begun = time.perf_counter()
        yield
        self._mark += time.perf_counter() - begun
