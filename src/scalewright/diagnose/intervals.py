"""Sets of time as sorted, disjoint intervals: union, difference, intersection, length. Whole nanoseconds.

    a        ████████      ███           union(a, b)          ███████████   ███
    b             ██████                 minus(a, b)          █████         ███
                                         length               a sum of integers: parts add up to the whole

An interval is a row of an int64 array [n, 2], start and end, the end not included. Every function takes and returns
sets that are sorted and disjoint, but `union`, which makes them so.
"""

from __future__ import annotations

import numpy as np

EMPTY = np.empty((0, 2), dtype=np.int64)


def union(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The set covered by any of the intervals; those without length are left out."""
    some = end > start
    start, end = start[some], end[some]
    if not len(start):
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((start[first], reach[last]), axis=1)


def merge(*sets: np.ndarray) -> np.ndarray:
    """The union of sets."""
    rows = np.concatenate(sets) if sets else EMPTY
    return union(rows[:, 0], rows[:, 1])


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What both contain: every pair of intervals that meet, in order."""
    if not len(a) or not len(b):
        return EMPTY
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")  # the first of b that ends after a's start
    count = np.maximum(np.searchsorted(b[:, 0], a[:, 1], side="left") - first, 0)
    rows = np.repeat(np.arange(len(a)), count)
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    other = first[rows] + offset
    return np.stack((np.maximum(a[rows, 0], b[other, 0]), np.minimum(a[rows, 1], b[other, 1])), axis=1)


def minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What `a` contains and `b` doesn't."""
    if not len(a):
        return EMPTY
    return overlap(a, gaps(b, int(a[0, 0]), int(a[-1, 1])))


def gaps(a: np.ndarray, start: int, end: int) -> np.ndarray:
    """What of [start, end) `a` doesn't contain."""
    edges = np.concatenate(([start], a.ravel(), [end])).reshape(-1, 2)
    edges = np.clip(edges, start, end)
    return edges[edges[:, 1] > edges[:, 0]]


def length(a: np.ndarray) -> int:
    """Nanoseconds."""
    return int((a[:, 1] - a[:, 0]).sum())


def place(start: np.ndarray, end: np.ndarray, when: np.ndarray) -> np.ndarray:
    """For each time the last interval that begins by then, if it holds it, else -1; `start` is sorted."""
    if not len(start):
        return np.full(len(when), -1)
    row = np.searchsorted(start, when, side="right") - 1
    return np.where((row >= 0) & (when < end[row]), row, -1)


def length_within(a: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Nanoseconds of `a` in each window [start, end); windows may overlap. int64, one a window."""
    if not len(a):
        return np.zeros(len(start), dtype=np.int64)
    covered = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))

    def before(when: np.ndarray) -> np.ndarray:
        row = np.searchsorted(a[:, 0], when, side="right")
        partly = np.minimum(when - a[row - 1, 0], a[row - 1, 1] - a[row - 1, 0])
        return np.where(row > 0, covered[row - 1] + partly, 0)

    return np.asarray(before(end) - before(start))
