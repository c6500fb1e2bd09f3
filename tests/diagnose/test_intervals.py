"""Sets of time against the same sets as lists of nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.diagnose import intervals

LINE = 60  # nanoseconds that the brute force looks at


def as_bits(some: np.ndarray) -> np.ndarray:
    bits = np.zeros(LINE, dtype=bool)
    for start, end in some:
        bits[start:end] = True
    return bits


def drawn(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    start = random.integers(0, LINE - 10, random.integers(0, 8))
    return start, start + random.integers(0, 10, len(start))


@pytest.mark.parametrize("seed", range(50))
def test_every_operation_equals_that_on_single_nanoseconds(seed: int) -> None:
    random = np.random.default_rng(seed)
    (start_a, end_a), (start_b, end_b) = drawn(random), drawn(random)
    a, b = intervals.union(start_a, end_a), intervals.union(start_b, end_b)
    bits_a, bits_b = as_bits(np.stack((start_a, end_a), 1)), as_bits(np.stack((start_b, end_b), 1))

    assert (as_bits(a) == bits_a).all()
    assert (as_bits(intervals.merge(a, b)) == (bits_a | bits_b)).all()
    assert (as_bits(intervals.overlap(a, b)) == (bits_a & bits_b)).all()
    assert (as_bits(intervals.minus(a, b)) == (bits_a & ~bits_b)).all()
    assert (as_bits(intervals.gaps(a, 0, LINE)) == ~bits_a).all()
    assert intervals.length(a) == bits_a.sum()

    start = random.integers(0, LINE, 5)
    end = np.minimum(start + random.integers(0, 20, 5), LINE)
    inside = intervals.length_within(a, start, end)
    assert inside.tolist() == [bits_a[s:e].sum() for s, e in zip(start, end, strict=True)]


def test_sets_are_sorted_disjoint_and_touching_intervals_are_one() -> None:
    assert intervals.union(np.array([5, 0, 2, 9]), np.array([7, 2, 4, 9])).tolist() == [[0, 4], [5, 7]]
