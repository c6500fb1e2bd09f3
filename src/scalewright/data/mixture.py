"""The source of sample i: shares that hold over every prefix, found without counting.

The weights become whole numbers of turns in a period, `turns[k]` of `period`; within a period source k's
turns are spread evenly, at (j + ½) / turns[k]. With weights 3 : 1 : 2

    slot      0  1  2  3  4  5 │ 6  7 …
    source    0  2  0  1  2  0 │ 0  2 …       (an order like this; never k samples in a row by chance)
    ordinal   0  0  1  0  1  2 │ 3  2 …       the source's samples before it

so sample i is a look-up at i mod period: no state, and a run that resumes needs only i.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

LARGEST_PERIOD = 1 << 20
"""Weights whose exact period is longer are rounded to this many turns: shares are then right to 1e-6."""


class Mixture:
    """Sources by weight: `source, ordinal = mixture(indices)`, exact over each period."""

    def __init__(self, weights: Sequence[float | int]) -> None:
        self.turns = np.array(_turns([Fraction(str(weight)) for weight in weights]), dtype=np.int64)
        self.period = int(self.turns.sum())
        source = np.repeat(np.arange(len(self.turns)), self.turns)
        ordinal = np.concatenate([np.arange(turns) for turns in self.turns])
        # Compared in float64: near-ties may fall either way, but on every machine the same way.
        when = (2 * ordinal + 1) / (2 * self.turns[source])
        order = np.lexsort((source, when))
        self._source, self._ordinal = source[order].astype(np.int64), ordinal[order].astype(np.int64)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each source; they add up to 1."""
        return self.turns / self.period

    def __call__(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each sample, and how many samples of that source come before it."""
        lap, slot = np.divmod(indices, self.period)
        source = self._source[slot]
        return source, lap * self.turns[source] + self._ordinal[slot]

    def count(self, samples: int) -> NDArray[np.int64]:
        """How many of the first `samples` samples come from each source."""
        laps, rest = divmod(samples, self.period)
        return laps * self.turns + np.bincount(self._source[:rest], minlength=len(self.turns))


def _turns(weights: list[Fraction]) -> list[int]:
    """Whole numbers in the weights' proportion: exact if the period allows, else by largest remainder."""
    total = sum(weights, Fraction(0))
    shares = [weight / total for weight in weights]
    common = lcm(*(share.denominator for share in shares))
    exact = [int(share * common) for share in shares]
    divisor = gcd(*exact)
    if common // divisor <= LARGEST_PERIOD:
        return [count // divisor for count in exact]
    turns = [max(int(share * LARGEST_PERIOD), 1) for share in shares]
    rest = [share * LARGEST_PERIOD - count for share, count in zip(shares, turns, strict=True)]
    for number in sorted(range(len(rest)), key=lambda k: -rest[k])[: max(0, LARGEST_PERIOD - sum(turns))]:
        turns[number] += 1
    return turns
