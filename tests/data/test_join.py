"""The histogram counts every document once, in the right bin."""

from __future__ import annotations

import numpy as np

from scalewright.data.join import histogram_lines, length_statistics


def test_bins_and_figures():
    lengths = np.array([1, 2, 3, 4, 7, 8, 1023, 1024, 1025])
    found = length_statistics(np.concatenate([[0], np.cumsum(lengths)]))
    bins = {entry["from"]: (entry["to"], entry["documents"], entry["tokens"]) for entry in found["histogram"]}
    assert bins[1] == (1, 1, 1)
    assert bins[2] == (3, 2, 5)
    assert bins[4] == (7, 2, 11)
    assert bins[8] == (15, 1, 8)
    assert bins[16] == (31, 0, 0)  # empty bins between others are shown
    assert bins[512] == (1023, 1, 1023)
    assert bins[1024] == (2047, 2, 2049)
    assert (found["shortest"], found["median"], found["longest"]) == (1, 7, 1025)
    assert found["mean"] == lengths.mean()


def test_powers_of_two_at_any_size():
    lengths = np.array([2**k + step for k in range(2, 40) for step in (-1, 0)])
    found = length_statistics(np.concatenate([[0], np.cumsum(lengths)]))
    for entry in found["histogram"]:
        inside = (lengths >= entry["from"]) & (lengths <= entry["to"])
        assert entry["documents"] == inside.sum()


def test_lines():
    found = length_statistics(np.array([0, 10, 20, 30, 130]))
    lines = histogram_lines(found, width=8)
    assert lines[0].split() == ["8–15", "████████", "3", "75.0%"]
    assert lines[-1].split() == ["64–127", "██▋", "1", "25.0%"]
    assert len({len(line) for line in lines}) == 1
    assert histogram_lines(length_statistics(np.zeros(1, np.int64))) == []
