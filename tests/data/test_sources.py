"""The shuffle: a bijection of any size, the same for ever, and without a preference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from scalewright.data.sources import Permutation, mix


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 1000, 4097, 100_000])
def test_every_index_once(size):
    for key in (0, 1, 2**64 - 1):
        found = Permutation(size, key)(np.arange(size, dtype=np.int64))
        assert np.array_equal(np.sort(found), np.arange(size))


def test_a_billion_samples_take_no_table():
    order = Permutation(10**9, 5)
    found = order(np.arange(10**9 - 1000, 10**9))
    assert found.min() >= 0
    assert found.max() < 10**9
    assert len(set(found.tolist())) == 1000


def test_any_part_is_part_of_the_whole():
    order = Permutation(777, 3)
    whole = order(np.arange(777))
    assert np.array_equal(order(np.array([5, 700, 5])), whole[[5, 700, 5]])


def test_the_order_is_the_same_for_ever():
    """Written down once: a change here changes every run's data, and breaks every resume across versions."""
    assert mix(1, 2, 3) == 15020427595393229491
    assert Permutation(10, 7)(np.arange(10)).tolist() == [8, 7, 6, 4, 3, 5, 2, 0, 9, 1]


def test_small_permutations_are_equally_likely():
    counts = Counter(tuple(Permutation(3, mix(key))(np.arange(3)).tolist()) for key in range(600))
    assert len(counts) == 6
    # Chi-square with 5 degrees of freedom: 20.5 has probability 0.001 for a fair shuffle; the keys are fixed.
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 20.5


def test_neighbours_are_parted():
    found = Permutation(100_000, 1)(np.arange(100_000))
    correlation = np.corrcoef(found[:-1], found[1:])[0, 1]
    assert abs(correlation) < 0.02  # six standard deviations of an independent order (1/sqrt(n) = 0.003)
    assert not np.array_equal(found, Permutation(100_000, 2)(np.arange(100_000)))
