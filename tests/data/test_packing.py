"""Rows hold every token once as a target, and nothing of one document reaches another."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from scalewright.data import packing
from scalewright.data.batch import IGNORED
from scalewright.data.dataset import TokenDataset

from .stores import EOD, make_store, token

LENGTHS = {
    "short and long": [5, 1, 17, 2, 40, 3, 3, 8],
    "one document": [57],
    "one token each": [1] * 9,
    "exact rows": [8, 16, 8],
    "less than a row": [3, 2],
}
everything = pytest.mark.parametrize("name", LENGTHS)


def epoch(data, number=0):
    return data.batch(range(number * len(data), (number + 1) * len(data)))


@everything
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("files", [1, 2])
def test_each_token_is_a_target_once(tmp_path, name, shuffle, files):
    lengths = LENGTHS[name]
    store = make_store(tmp_path, lengths, min(files, len(lengths)))
    data = TokenDataset([store], 8, seed=3, shuffle=shuffle)
    for number in (0, 1, 5):
        batch = epoch(data, number)
        counted = Counter(batch.targets[batch.targets != IGNORED].tolist())
        expected = {token(d, p): 1 for d, n in enumerate(lengths) for p in range(1, n)}
        assert dict(counted) == expected  # all but each document's first, which nothing comes before


@everything
def test_plain_rows_count_the_first_tokens_too(tmp_path, name):
    lengths = LENGTHS[name]
    data = TokenDataset([make_store(tmp_path, lengths)], 8, seed=3, document_mask=False)
    batch = epoch(data)
    assert batch.documents is None
    assert np.count_nonzero(batch.targets != IGNORED) == sum(lengths)
    assert (batch.positions == np.arange(8)).all()


@everything
def test_nothing_leaks(tmp_path, name):
    """Within one document number lies one document, in order, from position 0; its targets stay in it."""
    data = TokenDataset([make_store(tmp_path, LENGTHS[name])], 8, seed=1)
    batch = epoch(data)
    for tokens, targets, positions, documents in zip(
        batch.tokens, batch.targets, batch.positions, batch.documents, strict=True
    ):
        assert documents[0] == 0
        assert set(np.diff(documents)) <= {0, 1}
        for number in np.unique(documents):
            mine = documents == number
            assert np.array_equal(positions[mine], np.arange(mine.sum()))
            inside = tokens[mine]
            if (inside == EOD).all():  # padding
                assert (targets[mine] == IGNORED).all()
                continue
            assert (np.diff(inside) == 1).all()  # consecutive places of one document
            counted = targets[mine] != IGNORED
            assert (targets[mine][counted] == inside[counted] + 1).all()


def test_rows_against_a_plain_loop(tmp_path):
    """The same rows written down with lists: sequential, one ring, cut every seq_len."""
    lengths, width = [5, 11, 2, 9, 1, 7], 6
    data = TokenDataset([make_store(tmp_path, lengths)], width, shuffle=False, document_mask=False)
    ring = [token(d, p) for d, n in enumerate(lengths) for p in range(n)]
    for row in range(len(data)):
        stop = min((row + 1) * width, len(ring))
        tokens = ring[row * width : stop]
        targets = (ring + ring[:1])[row * width + 1 : stop + 1]
        batch = data.batch([row])
        assert batch.targets[0].tolist() == targets + [IGNORED] * (width - len(targets))
        assert batch.tokens[0, : len(tokens)].tolist() == tokens


def test_epochs_differ_and_repeat(tmp_path):
    data = TokenDataset([make_store(tmp_path, [7] * 40)], 10, seed=1)
    first, second = epoch(data, 0), epoch(data, 1)
    assert not np.array_equal(first.tokens, second.tokens)
    assert np.array_equal(first.tokens, epoch(data, 0).tokens)
    other = TokenDataset([data._sources[0].store], 10, seed=2)
    assert not np.array_equal(first.tokens, epoch(other, 0).tokens)


def test_one_long_document_is_cut_elsewhere_in_each_epoch(tmp_path):
    data = TokenDataset([make_store(tmp_path, [500])], 16, seed=1)
    starts = [set((epoch(data, number).tokens[:, 0] % 16).tolist()) for number in range(4)]
    assert len({min(start) for start in starts}) > 1


def test_runs_of_documents_are_shuffled_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "MAX_UNITS", 4)
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]  # runs of three documents
    data = TokenDataset([make_store(tmp_path, lengths, files=2)], 7, seed=2)
    batch = epoch(data)
    counted = sorted(batch.targets[batch.targets != IGNORED].tolist())
    assert counted == sorted(token(d, p) for d, n in enumerate(lengths) for p in range(1, n))
    for tokens, documents in zip(batch.tokens, batch.documents, strict=True):
        for number in np.unique(documents):
            inside = tokens[documents == number]
            assert (inside == EOD).all() or len(set(inside // 1000)) == 1


def test_a_document_a_row(tmp_path):
    lengths = [5, 1, 20, 9, 8] + [3] * 200
    data = TokenDataset([make_store(tmp_path, lengths)], 8, packing=False, shuffle=False)
    rows = [(d, start) for d, n in enumerate(lengths) for start in range(0, max(n - 1, 1), 8)]
    assert len(data) == len(rows)
    batch = epoch(data)
    for (document, start), tokens, targets, positions in zip(
        rows, batch.tokens, batch.targets, batch.positions, strict=True
    ):
        length = lengths[document]
        real = min(8, length - start)
        assert tokens[:real].tolist() == [token(document, start + k) for k in range(real)]
        expected = [token(document, start + k + 1) if start + k + 1 < length else IGNORED for k in range(8)]
        assert targets.tolist() == expected
        assert positions[:real].tolist() == list(range(real))


def test_a_document_a_row_shuffled_has_the_same_rows(tmp_path):
    store = make_store(tmp_path, list(range(1, 150)))
    plain = TokenDataset([store], 16, packing=False, shuffle=False)
    mixed = TokenDataset([store], 16, packing=False, seed=4)
    rows = {tuple(row) for row in epoch(plain).targets.tolist()}
    assert {tuple(row) for row in epoch(mixed, 3).targets.tolist()} == rows
    assert not np.array_equal(epoch(plain).targets, epoch(mixed).targets)
