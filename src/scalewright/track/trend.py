"""A whole history in a line of text: bounded memory however long the run, and its recent change.

add() ──► points, each the mean of `stride` values ──full? merge neighbours, stride ×2──► sparkline()

▇▆▅▄▄▃▃▂▂▂▁▁▁▁
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

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
        self._sum += value
        self._count += 1
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
