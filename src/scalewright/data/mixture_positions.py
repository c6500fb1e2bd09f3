"""The position of every source of a mixture, also after its weights changed: a pure function of the sample.

    samples       0 ........ 1000 ........... 1600 ...
    weights A:B     1 : 1          9 : 1              {"from": 0, "weights": {"0": 1, "1": 1}},
    of A            0..499        500..1039           {"from": 1000, "weights": {"0": 9, "1": 1}}
    of B            0..499        500..559

A source goes on from its position: nothing is skipped or repeated. It keeps the number that it got when it
first appeared, for its shuffle and its sample ids; a source that left keeps its place for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.mixture import Mixture

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
        segments = [
            {"from": s.start, "weights": {str(number): weight for number, weight in s.weights.items()}}
            for s in self.segments
        ]
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
        same = bool(past) and _turns(past[-1]) == _turns(new)
        return Positions(tuple(ordered), tuple(past if same else [*past, new])), numbers


def _turns(segment: Segment) -> dict[int, int]:
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
        """Samples of each source in the first `samples` of a segment."""
        counts = np.zeros_like(self._counts[0])
        mixture = self._mixtures[index]
        counts[self._numbers[index]] = mixture.count(samples)
        return counts
