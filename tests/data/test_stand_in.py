"""Data that stand in for a run's own: folded tokens, and random ones."""

from __future__ import annotations

import numpy as np

from scalewright.data.batch import IGNORED
from scalewright.data.dataset import open_data
from scalewright.spec.run import DataSpec, PythonRef


def stream(tmp_path):
    """A token file with documents of nine tokens."""
    tokens = np.arange(4000, dtype=np.uint16) % 1000 + 1
    tokens[::9] = 0
    np.save(tmp_path / "tokens.npy", tokens)
    source = {"path": str(tmp_path / "tokens.npy"), "eod": 0}
    return {"train": [source], "valid": [source], "seq_len": 64}


def test_folded_data_are_the_runs_own_in_a_smaller_vocabulary(tmp_path):
    keys = stream(tmp_path)
    whole = open_data(DataSpec.parse({**keys, "seq_len": 16}), "train", 3)
    name = "scalewright.data.stand_in:Folded"
    folded = open_data(PythonRef.parse({"python": name, "source": keys, "vocab_size": 50, "seq_len": 16}), "train", 3)
    assert folded.vocab_size == 50
    assert len(folded) == len(whole)
    a, b = whole.batch(range(6)), folded.batch(range(6))
    assert b.tokens.shape == (6, 16)
    assert np.array_equal(b.tokens, a.tokens % 50)
    assert np.array_equal(b.targets == IGNORED, a.targets == IGNORED)
    counted = a.targets != IGNORED
    assert np.array_equal(b.targets[counted], a.targets[counted] % 50)
    assert np.array_equal(b.positions, a.positions)
    assert np.array_equal(b.documents, a.documents)
    assert np.array_equal(b.sample_ids, a.sample_ids)


def test_rows_of_a_users_own_data_are_cut():
    source = {"python": "parts:Counting", "seq_len": 16}
    name = "scalewright.data.stand_in:Folded"
    keys = {"python": name, "source": source, "vocab_size": None, "seq_len": 8}
    found = open_data(PythonRef.parse(keys), "train", 0).batch([3, 4])
    assert found.tokens.shape == found.targets.shape == (2, 8)
    assert found.documents is None


def test_random_tokens_are_a_function_of_seed_and_index():
    keys = {"python": "scalewright.data.stand_in:RandomTokens", "vocab_size": 50, "seq_len": 32}
    data = open_data(PythonRef.parse(keys), "train", 7)
    first, again = data.batch([4, 900]), data.batch([900, 4])
    assert np.array_equal(first.tokens[0], again.tokens[1])
    assert np.array_equal(first.targets[1], again.targets[0])
    other = open_data(PythonRef.parse(keys), "train", 8).batch([4, 900])
    assert not np.array_equal(first.tokens, other.tokens)
    assert first.tokens.min() >= 0
    assert first.tokens.max() < 50


def test_random_documents():
    """Positions restart with each document, and nobody foretells its first token."""
    keys = {"python": "scalewright.data.stand_in:RandomTokens", "vocab_size": 50, "seq_len": 64}
    found = open_data(PythonRef.parse(keys), "train", 0).batch(range(20))
    starts = np.diff(found.documents, axis=1) == 1
    assert 20 < starts.sum() < 200
    assert np.array_equal(found.positions[:, 1:] == 0, starts)
    assert np.array_equal(found.targets[:, :-1] == IGNORED, starts)
    inside = ~starts
    assert np.array_equal(found.targets[:, :-1][inside], found.tokens[:, 1:][inside])
    plain = open_data(PythonRef.parse({**keys, "document_mask": False}), "train", 0).batch(range(3))
    assert plain.documents is None
    assert (plain.targets != IGNORED).all()
