"""Samples that a run passes over: ranges of sample numbers, and where counting without them leads.

    left out [[96, 104]]      sample    94  95 │ 96 … 103 │ 104 105
                              taken      0   1               2   3       from 94 on

A position in the data stays a sample number, whatever samples are left out before it; so ranges can be added
ahead of a run that is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]


@dataclass(frozen=True)
class LeftOut:
    """Ranges [first, end) of samples; sorted, and joined where they touch (`LeftOut.of`)."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> LeftOut:
        """All samples of some ranges, which may overlap."""
        joined: list[Range] = []
        for first, end in sorted((int(first), int(end)) for first, end in ranges):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((first, end))
        return cls(tuple(joined))

    def count(self, start: int) -> int:
        """How many samples from `start` on are left out."""
        return sum(end - max(first, start) for first, end in self.ranges if end > start)

    def numbers(self, start: int, counts: Sequence[int] | range) -> NDArray[np.int64]:
        """The sample that is taken as the `counts`-th (from 0) from `start` on; int64 of their shape."""
        samples = start + np.asarray(counts, dtype=np.int64)
        for first, end in self.ranges:
            if end > start:
                samples = np.where(samples >= max(first, start), samples + end - max(first, start), samples)
        return samples

    def after(self, start: int, count: int) -> int:
        """The position after `count` samples taken from `start` on."""
        return int(self.numbers(start, [count - 1])[0]) + 1 if count else start
