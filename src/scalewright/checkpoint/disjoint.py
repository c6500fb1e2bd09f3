"""Whether the stored boxes of a tensor overlap: a box counted twice would hide a hole elsewhere.

    ┌───┬───────┐   cut along dimension 1:  ┌───┐ ┌───────┐   each part along dimension 0:  ┌───┐ ┌───────┐
    │ a │   b   │                           │ a │ │   b   │                                 └───┘ └───────┘
    ├───┼───────┤                           ├───┤ ├───────┤                                 ┌───┐ ┌───────┐
    │ c │   d   │                           │ c │ │   d   │                                 └───┘ └───────┘
    └───┴───────┘                           └───┘ └───────┘   one box is left in each part: none overlap

Boxes that a straight cut parts don't overlap. Sharding by rows, columns and experts makes boxes that a few
rounds of cuts part entirely; boxes left together count as an overlap. n boxes of d dimensions take
O(LEVELS * d * n log n), whatever a manifest holds; comparing all pairs would take hours for a damaged one.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.spec.placement import Box

LEVELS = 16  # rounds of cuts; ours need one for each dimension that is sharded


def are_disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two of these boxes share an element; empty boxes share none with any."""
    groups = [[(offset, size) for offset, size in boxes if all(size)]]
    for _ in range(LEVELS):
        groups = [part for group in groups if len(group) > 1 for part in _cut(group)]
    return not any(len(group) > 1 for group in groups)


def _cut(boxes: list[Box]) -> list[list[Box]]:
    """The boxes in groups between the cuts along the first dimension that has any; one group: none has."""
    for dim in range(len(boxes[0][0])):
        boxes = sorted(boxes, key=lambda box: box[0][dim])
        groups, end = [], -1
        for offset, size in boxes:
            if offset[dim] >= end:
                groups.append([(offset, size)])
            else:
                groups[-1].append((offset, size))
            end = max(end, offset[dim] + size[dim])
        if len(groups) > 1:
            return groups
    return [boxes]
