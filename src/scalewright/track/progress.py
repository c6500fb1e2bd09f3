"""The state of a progress display: the newest rows, the loss so far, and when the run will end.

The loss's whole history is kept in bounded memory: points, each the mean of `stride` values; when they are full,
neighbours merge and the stride doubles. It is shown as a line of bars: ▇▆▅▄▄▃▃▂▂▂▁▁▁▁
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from scalewright.spec.common.formatting import count, decimal, duration, share, short_time
from scalewright.track.lines import Row

BARS = "▁▂▃▄▅▆▇█"


class Trend:
    """The history of one number at an even spacing, in at most `2 * points` values."""

    def __init__(self, points: int = 64) -> None:
        self._capacity = 2 * points
        self._means: list[float] = []
        self._stride = 1
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        """Takes the next value; None and non-finite ones are left out."""
        if value is None or not math.isfinite(value):
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._stride:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) >= self._capacity:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2

    def values(self) -> list[float]:
        total, number = self._sum, self._count  # another thread may be in `add`
        return [*self._means, total / number] if number else [*self._means]

    def change(self, share: float = 0.25) -> float | None:
        """The last value minus the one `share` of the history before it; None with too few values."""
        values = self.values()
        width = int(len(values) * share)
        return values[-1] - values[-1 - width] if width >= 1 else None


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as bars in at most `width` characters, the lowest the shortest; empty for less than two."""
    if len(values) < 2 or width < 1:
        return ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[0] * columns
    return "".join(BARS[min(7, int(8 * (mean - low) / (high - low)))] for mean in means)


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
