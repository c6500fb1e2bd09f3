"""Medians, turns and ratios against hand-made numbers."""

from __future__ import annotations

import pytest
from harness.statistics import in_turns, paired_difference, paired_ratio, quantile, spread


def test_quantiles_lie_between_neighbours():
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3, 4, 5, 6], 0.2) == pytest.approx(2.0)
    assert quantile([7], 0.8) == 7
    with pytest.raises(ValueError, match="no numbers"):
        spread([])


def test_turns_go_both_ways():
    met = []
    in_turns(["a", "b", "c"], 3, lambda name, number: met.append(f"{name}{number}"))
    assert met == ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2", "c2"]


def test_ratios_are_taken_within_a_round():
    """A machine that is three times as slow in one round leaves the ratio alone."""
    slow, fast = [2.0, 6.0, 2.0], [1.0, 3.0, 1.0]
    assert paired_ratio(slow, fast).median == 2.0
    assert paired_ratio(slow, fast).p80 == 2.0
    assert paired_difference(slow, fast).p20 == 1.0
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_ratio(slow, fast[:2])
