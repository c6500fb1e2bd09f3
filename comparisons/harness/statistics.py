"""Medians with their spread, and ratios of runs that were taken in turns.

    round 1   A B C          a ratio is taken within a round, where both met the same machine,
    round 2   C B A          and its median and 20th to 80th percentile are over the rounds
    round 3   A B C

A difference inside the spread of a contestant measured against itself is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and how far they lie apart."""

    median: float
    p20: float
    p80: float
    count: int

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def show(self, form: str = "{:.3f}") -> str:
        """`median (p20–p80)`."""
        return f"{form.format(self.median)} ({form.format(self.p20)}–{form.format(self.p80)})"


def spread(numbers: Sequence[float]) -> Spread:
    """Median and the 20th and 80th percentiles, interpolated; raises ValueError for no numbers."""
    if not numbers:
        raise ValueError("no numbers to take a median of")
    return Spread(quantile(numbers, 0.5), quantile(numbers, 0.2), quantile(numbers, 0.8), len(numbers))


def quantile(numbers: Sequence[float], share: float) -> float:
    """The value below which `share` of the numbers lie, linear between neighbours."""
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def in_turns(names: Sequence[str], rounds: int, run: Callable[[str, int], None]) -> None:
    """Calls `run(name, round)` for everyone in every round, every second round in the opposite order."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else list(reversed(names)):
            run(name, number)


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Spread:
    """Round by round ratios of two contestants' numbers."""
    return spread([a / b for a, b in zip(numerator, denominator, strict=True)])


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Spread:
    """Round by round differences, `first` minus `second`."""
    return spread([a - b for a, b in zip(first, second, strict=True)])
