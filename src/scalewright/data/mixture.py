"""The source of sample i: shares that hold over every prefix, found without counting.

The weights become whole numbers of turns in a period, `turns[k]` of `period`; within a period source k's
turns are spread evenly, at (j + ½) / turns[k]. With weights 3 : 1 : 2

    slot      0  1  2  3  4  5 │ 6  7 …
    source    0  2  0  1  2  0 │ 0  2 …       (an order like this; never k samples in a row by chance)
    ordinal   0  0  1  0  1  2 │ 3  2 …       the source's samples before it

so sample i is a look-up at i mod period: no state, and a run that resumes needs only i.

After the weights changed it is still a pure function of the sample:

    samples       0 ........ 1000 ........... 1600 ...
    weights A:B     1 : 1          9 : 1              {"from": 0, "weights": {"0": 1, "1": 1}},
    of A            0..499        500..1039           {"from": 1000, "weights": {"0": 9, "1": 1}}
    of B            0..499        500..559

A source goes on from its position: nothing is skipped or repeated. It keeps the number that it got when it
first appeared, for its shuffle and its sample ids; a source that left keeps its place for later.

A run may pass over ranges of samples (`LeftOut`), and counts without them:

    left out [[96, 104]]      sample    94  95 │ 96 … 103 │ 104 105
                              taken      0   1               2   3       from 94 on

A position in the data stays a sample number, whatever samples are left out before it; so ranges can be added
ahead of a run that is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

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


Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """From sample `start` on, the sources in `weights` (by number) are mixed."""

    start: int
    weights: dict[int, float]


@dataclass(frozen=True)
class Positions:
    """The sources that a run has had, in order of appearance, and their mixtures."""

    sources: tuple[str, ...]  # their fingerprints; a source's number is its index here
    segments: tuple[Segment, ...]

    def dump(self) -> dict[str, object]:
        """Plain data, for state.json."""
        weights = [{str(number): weight for number, weight in s.weights.items()} for s in self.segments]
        segments = [{"from": s.start, "weights": of} for s, of in zip(self.segments, weights, strict=True)]
        return {"sources": list(self.sources), "segments": segments}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Positions:
        """The positions of a `dump`."""
        segments = tuple(
            Segment(int(s["from"]), {int(number): weight for number, weight in s["weights"].items()})
            for s in data["segments"]
        )
        return cls(tuple(str(source) for source in data["sources"]), segments)

    def then(self, samples: int, sources: Sequence[str], weights: Sequence[float]) -> tuple[Positions, list[int]]:
        """The same run from sample `samples` on, with these sources (fingerprints) and weights; and the
        sources' numbers."""
        ordered = list(self.sources)
        numbers: list[int] = []
        for source in sources:
            number = next((n for n, other in enumerate(ordered) if other == source and n not in numbers), len(ordered))
            ordered += [source] if number == len(ordered) else []
            numbers.append(number)
        past = [segment for segment in self.segments if segment.start < samples]
        new = Segment(samples, dict(zip(numbers, weights, strict=True)))
        same = bool(past) and _turns_of(past[-1]) == _turns_of(new)
        return Positions(tuple(ordered), tuple(past if same else [*past, new])), numbers


def _turns_of(segment: Segment) -> dict[int, int]:
    """The mixture's whole numbers, in the order of the sources: weights 1:1 and 2:2 mix alike."""
    numbers = list(segment.weights)
    turns = Mixture([segment.weights[number] for number in numbers]).turns
    return dict(zip(numbers, (int(t) for t in turns), strict=True))


class SourceOf:
    """Samples to sources: `number, ordinal = source_of(indices)`, over all segments."""

    def __init__(self, positions: Positions) -> None:
        self.segments = positions.segments
        self._starts = np.array([segment.start for segment in self.segments], dtype=np.int64)
        self._numbers = [np.array(list(s.weights), dtype=np.int64) for s in self.segments]
        self._mixtures = [Mixture(list(s.weights.values())) for s in self.segments]
        self._counts = [np.zeros(len(positions.sources), np.int64)]  # of each source before a segment
        for index, end in enumerate(self._starts[1:]):
            self._counts.append(self._counts[-1] + self._count(index, int(end - self._starts[index])))

    @property
    def shares(self) -> dict[int, float]:
        """The share of each source that is mixed now, by number; they add up to 1."""
        pairs = zip(self._numbers[-1], self._mixtures[-1].shares, strict=True)
        return {int(number): float(share) for number, share in pairs}

    def given(self, samples: int) -> list[int]:
        """How many of the first `samples` samples came from each source."""
        index = max(0, int(np.searchsorted(self._starts, samples, side="right")) - 1)
        return [int(n) for n in self._counts[index] + self._count(index, samples - int(self._starts[index]))]

    def __call__(self, indices: Int64) -> tuple[Int64, Int64]:
        """The source of each sample, and how many samples of that source come before it."""
        segment_of = np.searchsorted(self._starts, indices, side="right") - 1
        source, ordinal = np.empty_like(indices), np.empty_like(indices)
        for index in np.unique(segment_of):
            chosen = segment_of == index
            position, count = self._mixtures[index](indices[chosen] - self._starts[index])
            source[chosen] = self._numbers[index][position]
            ordinal[chosen] = self._counts[index][source[chosen]] + count
        return source, ordinal

    def _count(self, index: int, samples: int) -> Int64:
        counts = np.zeros_like(self._counts[0])
        mixture = self._mixtures[index]
        counts[self._numbers[index]] = mixture.count(samples)
        return counts


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
