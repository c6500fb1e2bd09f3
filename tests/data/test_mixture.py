"""Shares hold over every prefix, and a source's samples are taken one after the other.

A mixture whose weights change on the way: every source goes on where it stood.

Counting past the samples that are left out, against counting them one by one.
"""

from __future__ import annotations

import json
import random
import shutil
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest

from runs import make_data
from scalewright.data.dataset import TokenDataset, open_data, store_identity
from scalewright.data.mixture import LARGEST_PERIOD, LeftOut, Mixture, Positions, Segment, SourceOf
from scalewright.data.readers import open_tokens
from scalewright.spec.run import DataSpec


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


def begin(*weights: float) -> Positions:
    return Positions((), ()).then(0, [f"source {n}" for n in range(len(weights))], weights)[0]


def ordinals(positions: Positions, samples: int) -> dict[int, list[int]]:
    """Which of its samples each source gives, in the order in which it gives them."""
    source, ordinal = SourceOf(positions)(np.arange(samples))
    return {int(n): ordinal[source == n].tolist() for n in np.unique(source)}


@pytest.mark.parametrize("at", [1, 7, 1000])
def test_after_changed_weights_nothing_is_skipped_or_repeated(at):
    """1:1, then 9:1 at some sample; the two faults were 400 samples skipped of A and 400 of B repeated."""
    before = begin(1, 1)
    after, _ = before.then(at, before.sources, [9, 1])
    found = ordinals(after, at + 1000)
    assert found[0] == list(range(len(found[0])))
    assert found[1] == list(range(len(found[1])))
    given = SourceOf(before).given(at)
    assert SourceOf(after).given(at) == given
    assert SourceOf(after).given(at + 1000) == [given[0] + 900, given[1] + 100]


def test_the_samples_before_the_change_stay_what_they_were():
    before = begin(2, 1, 1)
    after, _ = before.then(50, before.sources, [1, 5, 1])
    numbers = np.arange(50)
    assert all(map(np.array_equal, SourceOf(before)(numbers), SourceOf(after)(numbers)))


def test_a_list_of_changes_survives_json_and_is_a_pure_function_of_the_index():
    positions = begin(1, 1)
    for at, weights in ((10, [3, 1]), (25, [0.2, 0.8]), (26, [1, 1])):
        positions, _ = positions.then(at, positions.sources, weights)
    again = Positions.parse(json.loads(json.dumps(positions.dump())))
    assert again == positions
    numbers = np.random.default_rng(0).permutation(200)
    whole = SourceOf(positions)(np.arange(200))
    for mine, wanted in zip(SourceOf(again)(numbers), whole, strict=True):
        assert np.array_equal(mine, wanted[numbers])


def test_equal_weights_are_no_change_and_going_back_forgets_what_came_later():
    positions, _ = begin(1, 1).then(10, ["source 0", "source 1"], [2, 2])
    assert len(positions.segments) == 1
    later, _ = positions.then(40, positions.sources, [3, 1])
    back, _ = later.then(20, later.sources, [1, 4])
    assert [segment.start for segment in back.segments] == [0, 20]


def test_sources_come_go_and_return_by_what_they_hold():
    """A new one begins at its first sample; one that returns goes on; the order in the file is no matter."""
    positions, numbers = begin(1, 1).then(10, ["new", "source 1"], [1, 1])
    assert numbers == [2, 1]
    positions, numbers = positions.then(30, ["source 1", "source 0", "new"], [1, 1, 1])
    assert numbers == [1, 0, 2]
    found = ordinals(positions, 60)
    assert all(given == list(range(len(given))) for given in found.values())
    assert SourceOf(positions).given(30) == [5, 15, 10]


def two_sources(tmp_path: Path, first: float, second: float, seq_len: int = 16) -> DataSpec:
    paths = [tmp_path / f"tokens-{seed}.npy" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        if not path.exists():
            make_data(tmp_path, 200, seed)
    sources = [
        {"path": str(path), "eod": 0, "weight": weight} for path, weight in zip(paths, (first, second), strict=True)
    ]
    return DataSpec.parse({"train": sources, "seq_len": seq_len})


def test_each_sources_samples_in_their_order_whatever_the_weights(tmp_path):
    """The ids of a source's samples over a changed run are those of a run that never changed."""
    even = open_data(two_sources(tmp_path, 1, 1), "train", 3)
    assert isinstance(even, TokenDataset)
    turned = open_data(two_sources(tmp_path, 9, 1), "train", 3, before=even.positions, samples=40)
    assert isinstance(turned, TokenDataset)

    def by_source(dataset: TokenDataset) -> list[list[int]]:
        ids = dataset.sample_ids(range(100)).tolist()
        return [[i for i in ids if i >> 56 == number] for number in (0, 1)]

    for mine, wanted in zip(by_source(turned), by_source(even), strict=True):
        shared = min(len(mine), len(wanted))
        assert mine[:shared] == wanted[:shared]
        assert len(set(mine)) == len(mine)
    assert turned.given(100) == [20 + 54, 20 + 6]


def test_sources_named_in_another_order_are_the_same_data(tmp_path):
    spec = two_sources(tmp_path, 1, 1)
    first = open_data(spec, "train", 3)
    assert isinstance(first, TokenDataset)
    turned = DataSpec.parse({"train": [s.dump() for s in reversed(spec.train)], "seq_len": 16})
    again = open_data(turned, "train", 3, before=first.positions, samples=10)
    assert isinstance(again, TokenDataset)
    assert again.sample_ids(range(30)).tolist() == first.sample_ids(range(30)).tolist()
    assert np.array_equal(again.batch(range(12)).tokens, first.batch(range(12)).tokens)


def test_an_identity_is_of_the_content_and_not_of_the_place(tmp_path):
    path = make_data(tmp_path, 100)
    before = store_identity(open_tokens(path, eod=0))
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(path, tmp_path / "elsewhere" / "other-name.npy")
    assert store_identity(open_tokens(moved, eod=0)) == before
    assert store_identity(open_tokens(moved, eod=1)) != before
    tokens = np.load(moved)
    tokens[0] += 1
    np.save(moved, tokens)
    assert store_identity(open_tokens(moved, eod=0)) != before


def test_one_source_is_a_mixture_too():
    assert begin(5.0) == Positions(("source 0",), (Segment(0, {0: 5.0}),))


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
