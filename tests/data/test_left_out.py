"""Counting past the samples that are left out, against counting them one by one."""

from __future__ import annotations

import random
from itertools import count, islice

from scalewright.data.left_out import LeftOut


def test_the_picture_of_the_docstring():
    left_out = LeftOut.of([[96, 104]])
    assert left_out.numbers(94, range(4)).tolist() == [94, 95, 104, 105]
    assert [left_out.after(94, taken) for taken in range(4)] == [94, 95, 96, 105]


def test_numbers_are_those_of_counting():
    """Any ranges, touching and overlapping ones too, from any start: also within a range."""
    numbers = random.Random(5)
    for _ in range(200):
        starts = [numbers.randrange(60) for _ in range(numbers.randrange(5))]
        ranges = [(start, start + numbers.randrange(1, 12)) for start in starts]
        left_out, start = LeftOut.of(ranges), numbers.randrange(60)
        taken = (n for n in count(start) if not any(first <= n < end for first, end in ranges))
        expected = list(islice(taken, 20))
        assert left_out.numbers(start, range(20)).tolist() == expected
        assert left_out.after(start, 20) == expected[-1] + 1
        ahead = sum(any(first <= n < end for first, end in ranges) for n in range(start, 100))
        assert left_out.count(start) == ahead
