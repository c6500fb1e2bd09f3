"""Boxes that overlap are seen, those of any sharding pass, and many cost little."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from scalewright.checkpoint.disjoint import are_disjoint


def grid(*cuts: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The boxes between the cuts of each dimension."""
    boxes = product(*(list(pairwise(cut)) for cut in cuts))
    return [(tuple(a for a, _ in box), tuple(b - a for a, b in box)) for box in boxes]


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [((), ())],
        grid([0, 4, 8]),
        grid([0, 1, 3, 8], [0, 2, 6]),
        grid([0, 2, 4], [0, 3, 6], [0, 5, 9]),
        [((0, 0), (8, 3)), *[((row, 3), (2, 3)) for row in range(0, 8, 2)]],  # columns, cut in other rows
        [((0, 0), (4, 4)), ((1, 1), (0, 2))],  # an empty one in another
    ],
)
def test_boxes_of_shardings_are_disjoint(boxes):
    assert are_disjoint(boxes)
    assert are_disjoint(boxes[::-1])


@pytest.mark.parametrize(
    "boxes",
    [
        [((), ()), ((), ())],
        [((0,), (4,)), ((0,), (4,))],
        [((0,), (4,)), ((3,), (5,))],
        [((0,), (8,)), ((1,), (2,)), ((5,), (2,))],  # two in one that begins before
        [*grid([0, 4, 8], [0, 4, 8]), ((3, 3), (2, 2))],
    ],
)
def test_boxes_that_overlap(boxes):
    assert not are_disjoint(boxes)
    assert not are_disjoint(boxes[::-1])


def test_any_two_boxes():
    """Two boxes are disjoint exactly when no element is in both."""
    random = np.random.default_rng(0)
    for _ in range(300):
        taken, boxes = np.zeros((6, 6), int), []
        for _ in range(2):
            offset, size = random.integers(0, 4, 2), random.integers(0, 3, 2)
            taken[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))] += 1
            boxes.append((tuple(offset.tolist()), tuple(size.tolist())))
        assert are_disjoint(boxes) == (taken.max() < 2)


def test_many_boxes_are_not_compared_in_pairs():
    """The reads of the boxes' offsets grow with n log n, where all pairs of 4096 would be 8 million."""

    class Counted(tuple[int, ...]):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    boxes = [(Counted(offset), size) for offset, size in grid(list(range(65)), list(range(65)))]
    assert are_disjoint(boxes)
    assert Counted.reads < 100 * len(boxes)
    same = [(Counted((0, 0)), (4, 4))] * 4096
    assert not are_disjoint(same)
    assert Counted.reads < 400 * len(boxes)
