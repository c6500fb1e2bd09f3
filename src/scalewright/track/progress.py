"""The state of a progress display: the newest rows, the loss so far, and when the run will end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from scalewright.spec.text.words import count, decimal, duration, share, short_time
from scalewright.track.lines import Row
from scalewright.track.trend import Trend


@dataclass
class DisplayState:
    """One writer (the loop) sets plain attributes; one reader (the display) reads them at any time."""

    name: str
    total_steps: int
    start_step: int
    description: tuple[str, ...]
    row: Row = field(default_factory=dict)
    last_step: int | None = None  # of this call, where it ends before the run does
    valid: Row = field(default_factory=dict)
    saved: tuple[int, float] | None = None  # (step, time.monotonic())
    trend: Trend = field(default_factory=Trend)
    _began: float = 0.0
    _first: tuple[int, float] | None = None
    _newest: float = 0.0

    def begin(self) -> None:
        self._began = self._newest = time.monotonic()

    def step(self, row: Row) -> None:
        self.row = row
        self._newest = time.monotonic()
        if self._first is None:
            self._first = (int(row["step"]), self._newest)
        self.trend.add(row.get("loss"))

    @property
    def done(self) -> int:
        """The newest step, or the one that the run continued from."""
        return int(self.row.get("step", self.start_step))

    @property
    def goal(self) -> str:
        """`1,000`, or `5 of 1,000` where this call ends before the run does."""
        total = f"{self.total_steps:,}"
        return total if self.last_step is None else f"{self.last_step:,} of {total}"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def eta(self) -> float | None:
        """Seconds to this call's last step: those left, at the pace of the wall clock since the first step.

        The first step is left out of the pace (it warms up and compiles); validations and saves are in it.
        """
        left = (self.total_steps if self.last_step is None else self.last_step) - self.done
        if self._first is None or left < 0:
            return None
        step, moment = self._first
        if self.done > step:
            pace = (self._newest - moment) / (self.done - step)
        else:
            pace = self.row.get("step_time_s") or 0.0
        return left * pace


def plain_line(progress: DisplayState) -> str:
    row = progress.row
    parts = [
        f"step {progress.done:,}/{progress.goal}",
        f"loss {decimal(row.get('loss'), 5)}",
        f"grad norm {decimal(row.get('grad_norm'), 3)}",
        f"lr {decimal(row.get('lr'), 3)}",
        f"{short_time(row.get('step_time_s'))} a step",
        f"{count(row.get('tokens_per_s'))} tokens/s",
    ]
    if row.get("mfu") is not None:
        parts.append(f"MFU {share(row['mfu'])}")
    if row.get("memory_gib") is not None:
        parts.append(f"{row['memory_gib']:.2f} GiB")
    return "  ".join([*parts, f"eta {duration(progress.eta)}"])
