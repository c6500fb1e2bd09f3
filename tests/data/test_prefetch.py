"""Batches made ahead: in order, at most so many, and no thread is left behind."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from scalewright.data.dataset import TokenDataset
from scalewright.data.prefetch import AHEAD, Prefetcher

from .stores import make_store


class Counting:
    """Notes which batches were asked for; the one at `fails` raises."""

    def __init__(self, inner, fails=None):
        self.inner, self.fails, self.asked = inner, fails, []

    def batch(self, indices):
        self.asked.append(indices[0])
        if indices[0] == self.fails:
            raise OSError("the disk is gone")
        return self.inner.batch(indices)


@pytest.fixture
def data(tmp_path):
    return TokenDataset([make_store(tmp_path, [9] * 30)], 8)


def steps(count):
    return (range(4 * step, 4 * step + 4) for step in range(count))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "scalewright-prefetch"]


def test_same_batches_in_the_same_order(data):
    with closing(Prefetcher(data, steps(20))) as batches:
        found = list(batches)
    assert len(found) == 20
    for step, batch in enumerate(found):
        assert np.array_equal(batch.tokens, data.batch(range(4 * step, 4 * step + 4)).tokens)
    assert not threads()


def test_no_further_ahead_than_asked(data):
    counting = Counting(data)
    with closing(Prefetcher(counting, steps(100))) as batches:
        next(batches)
        deadline = time.monotonic() + 10
        while len(counting.asked) < AHEAD + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(counting.asked) == AHEAD + 2  # one taken, those waiting, one that waits for room
    assert not threads()


def test_an_error_comes_where_its_batch_would(data):
    batches = Prefetcher(Counting(data, fails=8), steps(10))
    assert [next(batches).sample_ids.shape for _ in range(2)] == [(4,), (4,)]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert not threads()


def test_closing_early_and_twice(data):
    batches = Prefetcher(data, steps(10**9))
    next(batches)
    batches.close()
    batches.close()
    assert not threads()
    assert list(batches) == []
