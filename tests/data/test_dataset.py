"""The order is a pure function of (seed, index): the same for any ranks, after any stop, in any mixture."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from scalewright.data.batch import IGNORED, sample_ids_hash
from scalewright.data.dataset import TokenDataset, open_data
from scalewright.data.prepare import prepare
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec

from .stores import make_store
from .texts import words

FIELDS = ("tokens", "targets", "positions", "documents", "sample_ids")


def dataset(folder, **keys):
    stores = [make_store(folder, [3 + (7 * k) % 23 for k in range(50)]), make_store(folder, [60, 2, 31])]
    return TokenDataset(stores, 12, seed=5, weights=[0.75, 0.25], **keys)


def equal(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 24])
def test_any_number_of_ranks_sees_the_same_step(tmp_path, ranks):
    data = dataset(tmp_path)
    for step in (0, 1, 30):
        start, share = step * 24, 24 // ranks
        whole = data.batch(range(start, start + 24))
        parts = [data.batch(range(start + r * share, start + (r + 1) * share)) for r in range(ranks)]
        for name in FIELDS:
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
        ids = np.concatenate([part.sample_ids for part in parts])
        assert sample_ids_hash(ids) == sample_ids_hash(whole.sample_ids)


def test_a_fresh_dataset_goes_on_where_the_old_one_stopped(tmp_path):
    data = dataset(tmp_path)
    straight = [data.batch(range(step * 8, step * 8 + 8)) for step in range(40)]
    again = TokenDataset([source.store for source in data._sources], 12, seed=5, weights=[0.75, 0.25])
    assert all(equal(again.batch(range(step * 8, step * 8 + 8)), straight[step]) for step in range(17, 40))


def test_indices_in_any_order(tmp_path):
    data = dataset(tmp_path)
    whole = data.batch(range(100))
    picked = data.batch([99, 3, 3, 50])
    for name in FIELDS:
        assert np.array_equal(getattr(picked, name), getattr(whole, name)[[99, 3, 3, 50]])


def test_sample_ids_are_unique_and_need_no_tokens(tmp_path):
    data = dataset(tmp_path)
    ids = data.sample_ids(range(3000))
    assert len(set(ids.tolist())) == 3000
    assert np.array_equal(ids[70:90], data.batch(range(70, 90)).sample_ids)
    assert sample_ids_hash(ids[:8]) != sample_ids_hash(ids[:8][::-1])


def test_mixture_takes_its_shares(tmp_path):
    source = dataset(tmp_path).sample_ids(range(4000)) >> 56
    assert np.bincount(source).tolist() == [3000, 1000]


def test_validation_meets_every_row_once(tmp_path):
    stores = [make_store(tmp_path, [40, 3, 90]), make_store(tmp_path, [25])]
    data = TokenDataset(stores, 8, shuffle=False)
    ids = data.sample_ids(range(len(data)))
    assert len(set(ids.tolist())) == len(data)
    assert len(data) == sum(source.rows.count for source in data._sources)
    for number in (0, 1):
        mine = ids[ids >> 56 == number]
        assert (np.diff(mine) == 1).all()  # as they lie


def test_bytes_per_token_counts_what_is_predicted(tmp_path):
    """Sum of nats / text bytes = mean loss · targets / bytes: so the figure is bytes over counted targets."""
    store = make_store(tmp_path, [10, 20, 30], text_bytes=228)
    for mask in (True, False):
        data = TokenDataset([store], 8, document_mask=mask)
        counted = np.count_nonzero(data.batch(range(len(data))).targets != IGNORED)
        assert data.bytes_per_token == 228 / counted
    assert math.isnan(TokenDataset([make_store(tmp_path, [9])], 8).bytes_per_token)


@pytest.mark.parametrize("indices", [[], [-1], range(0)])
def test_bad_indices(tmp_path, indices):
    with pytest.raises(ValueError, match="indices from 0"):
        dataset(tmp_path).batch(indices)


def test_open_data_says_what_is_missing(tmp_path):
    spec = DataSpec.parse({"train": str(tmp_path / "none")})
    with pytest.raises(UserError, match="scalewright prepare"):
        open_data(spec, "train")
    with pytest.raises(UserError, match="no valid data is named"):
        open_data(spec, "valid")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no tokens in this folder"):
        open_data(DataSpec.parse({"train": str(tmp_path / "empty")}), "train")


def prepared(folder, name, seed, **keys):
    (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": words(60, seed + k)}) for k in range(80)))
    prepare(folder / f"{name}.jsonl", folder / name, progress=None, workers=1, **keys)
    return str(folder / name)


def test_a_mixture_of_prepared_folders(tmp_path):
    one = prepared(tmp_path, "one", 1, vocab_size=300)
    two = prepared(tmp_path, "two", 500, tokenizer=f"{one}/tokenizer.json")
    sources = [{"path": one, "weight": 3}, {"path": two}]
    spec = DataSpec.parse({"train": sources, "valid": [one, two], "seq_len": 32})
    train, valid = open_data(spec, "train", seed=1), open_data(spec, "valid")
    assert np.bincount(train.sample_ids(range(400)) >> 56).tolist() == [300, 100]
    assert train.batch(range(8)).tokens.shape == (8, 32)
    assert len(set(valid.sample_ids(range(len(valid))).tolist())) == len(valid)
    assert (train.vocab_size, train.eod) == (300, 0)
    assert 1 < train.bytes_per_token < 8
    other = prepared(tmp_path, "other", 900, vocab_size=310)
    with pytest.raises(UserError, match="different tokenizers"):
        open_data(DataSpec.parse({"train": [one, other]}), "train")
