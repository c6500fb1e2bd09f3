"""Shares hold over every prefix, and a source's samples are taken one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.data.mixture import LARGEST_PERIOD, Mixture


@pytest.mark.parametrize("weights", [[1], [1, 1], [0.7, 0.3], [3, 1, 2], [0.5, 0.25, 0.125, 0.125], [99, 1]])
def test_shares_over_every_prefix(weights):
    mixture = Mixture(weights)
    source, _ = mixture(np.arange(5000))
    shares = np.array(weights) / sum(weights)
    taken = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
    off = np.abs(taken - np.arange(1, 5001)[:, None] * shares)
    assert off.max() <= len(weights) / 2 + 0.5  # evenly spread turns miss their share by a few samples at most


def test_shares_are_exact_after_each_period():
    mixture = Mixture([0.7, 0.2, 0.1])
    assert mixture.period == 10
    source, _ = mixture(np.arange(10_000))
    assert np.bincount(source).tolist() == [7000, 2000, 1000]


def test_ordinals_count_each_source():
    source, ordinal = Mixture([3, 1, 2])(np.arange(1000))
    for number in range(3):
        assert np.array_equal(ordinal[source == number], np.arange((source == number).sum()))


def test_any_index_alone():
    mixture = Mixture([0.6, 0.4])
    source, ordinal = mixture(np.arange(2000))
    for index in (0, 17, 1234, 1999):
        one, other = mixture(np.array([index]))
        assert (one[0], other[0]) == (source[index], ordinal[index])


def test_weights_without_a_short_period_are_rounded():
    weights = [0.123456789, 1.0, 1e-9]
    mixture = Mixture(weights)
    assert mixture.period <= LARGEST_PERIOD + len(weights)
    assert mixture.turns.min() >= 1  # no source is left out
    assert np.allclose(mixture.shares, np.array(weights) / sum(weights), atol=2 / LARGEST_PERIOD)
