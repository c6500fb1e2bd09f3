"""A user's dataset in the shapes that people have it: which items become which rows."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import items
from scalewright.data.dataset import open_data
from scalewright.data.items import ItemReader
from scalewright.data.tokenizer import train_tokenizer
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef

SEQ = 16


def opened(name: str, split: Any = "train", **keys: Any) -> Any:
    return open_data(PythonRef.parse({"python": f"items:{name}", "seq_len": SEQ, **keys}), split, seed=3)


def pairs(data: Any, rows: int, start: int = 0) -> list[tuple[int, int]]:
    """The (input, target) pairs of rows, in order."""
    batch = data.batch(range(start, start + rows))
    counted = batch.targets != -100
    return list(zip(batch.tokens[counted].tolist(), batch.targets[counted].tolist(), strict=True))


def expected(documents: list[list[int]]) -> list[tuple[int, int]]:
    return [pair for tokens in documents for pair in pairwise(tokens)]


IN_ORDER = [items.document(number) for number in range(90)]
STREAMS = [("flowing", {}), ("yielded", {}), ("by_index", {}), ("huggingface", {"streaming": True})]


@pytest.mark.parametrize(("name", "keys"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_stream_is_read_in_its_order(name, keys, tmp_path):
    if name == "huggingface":
        keys = {**keys, "folder": str(tmp_path)}
    data = opened(name, **keys)
    wanted = expected(IN_ORDER)
    assert pairs(data, 40) == wanted[: 40 * SEQ]
    batch = data.batch(range(40, 44))
    starts = np.flatnonzero(batch.positions.ravel() == 0)
    assert len(starts) > 4
    assert (np.diff(batch.documents, axis=1) >= 0).all()
    assert batch.tokens.dtype == batch.targets.dtype == np.int64


@pytest.mark.parametrize(("name", "keys"), [("numbered", {}), ("huggingface", {})], ids=["torch", "datasets"])
def test_a_dataset_with_numbers_is_shuffled_anew_each_epoch(name, keys, tmp_path):
    if name == "huggingface":
        keys = {**keys, "folder": str(tmp_path)}
    data, total = opened(name, **keys), len(expected(IN_ORDER))
    found = pairs(data, 2 * total // SEQ + 1)
    assert sorted(found[:total]) == sorted(found[total : 2 * total]) == sorted(expected(IN_ORDER))
    assert found[:total] != found[total : 2 * total] != expected(IN_ORDER)
    assert pairs(opened(name, **keys), 10) == found[: 10 * SEQ]


def test_whoever_skips_gets_the_same_rows():
    """As data-parallel ranks do, and a run that goes on."""
    whole = opened("numbered").batch(range(60))
    data = opened("numbered")
    for start in range(2, 60, 6):
        part = data.batch(range(start, start + 2))
        assert np.array_equal(part.tokens, whole.tokens[start : start + 2])
    assert np.array_equal(data.batch(range(3)).targets, whole.targets[:3])  # from the beginning again


@pytest.mark.parametrize(
    ("name", "keys"),
    [*STREAMS, ("numbered", {}), ("yielded", {"document_mask": False}), ("yielded", {"packing": False})],
)
def test_a_place_in_json_is_enough_to_go_on_from(name, keys, tmp_path):
    if name == "huggingface":
        keys = {**keys, "folder": str(tmp_path)}
    whole = opened(name, **keys).batch(range(200))
    before, after = opened(name, **keys), opened(name, **keys)
    for start in range(0, 140, 4):
        before.batch(range(start, start + 4))
    place = json.loads(json.dumps(before.inner.position(130)))  # the reader has gone further by then
    assert 126 <= place["row"] <= 130
    after.inner.seek(place)
    again = after.batch(range(130, 200))
    for field in ("tokens", "targets", "positions", "documents"):
        mine, wanted = getattr(again, field), getattr(whole, field)
        assert (mine is None and wanted is None) or np.array_equal(mine, wanted[130:]), field


def test_a_huggingface_stream_goes_on_from_its_own_state_unless_it_is_shuffled(tmp_path):
    """The state leaves out what waits in a shuffle's buffer, so that a resume would take other examples."""
    places = []
    for shuffled in (False, True):
        data = opened("huggingface", folder=str(tmp_path), streaming=True, shuffled=shuffled)
        for start in range(0, 60, 6):
            data.batch(range(start, start + 6))
        places.append(data.inner.position(60))
        again = opened("huggingface", folder=str(tmp_path), streaming=True, shuffled=shuffled)
        again.inner.seek(places[-1])
        assert np.array_equal(again.batch(range(60, 90)).tokens, data.batch(range(60, 90)).tokens)
    assert places[0]["state"] is not None
    assert places[1]["state"] is None


def test_without_a_document_mask_rows_are_one_long_text():
    batch = opened("yielded", document_mask=False).batch(range(30))
    tokens = [token for tokens in IN_ORDER for token in tokens]
    assert batch.tokens.ravel().tolist() == tokens[: 30 * SEQ]
    assert batch.targets.ravel().tolist() == tokens[1 : 30 * SEQ + 1]
    assert batch.documents is None
    assert batch.positions[3].tolist() == list(range(SEQ))


def test_a_document_a_row():
    short = [{"input_ids": [1, 2, 3]}, {"input_ids": list(range(1, SEQ + 2))}]
    batch = opened("listed", "valid", packing=False, items=short).batch(range(2))
    assert batch.tokens[0, :2].tolist() == [1, 2]
    assert batch.targets[0].tolist() == [2, 3] + [-100] * (SEQ - 2)
    assert batch.targets[1].tolist() == list(range(2, SEQ + 2))
    long = [{"input_ids": list(range(1, 40))}]
    with pytest.raises(UserError, match=r"39 tokens, and a row takes seq_len \+ 1 = 17 .*packing: true"):
        opened("listed", packing=False, items=long).batch([0])


def test_validation_sees_each_row_once():
    data = opened("yielded", "valid", count=7)
    wanted = expected([items.document(1000 + number) for number in range(7)])
    assert pairs(data, 30) == wanted
    assert not (data.batch(range(30, 33)).targets != -100).any()
    assert pairs(data, 30) == wanted  # again, from its beginning


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        ({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}, [(2, 3), (3, 4)]),
        ({"input_ids": [1, 2, 3, 4], "loss_mask": [1, 1, 0, 1]}, [(1, 2), (3, 4)]),
        ({"input_ids": [1, 2, 3, 0, 0], "attention_mask": [1, 1, 1, 0, 0]}, [(1, 2), (2, 3)]),
        ({"pair": [[1, 2, 3], [2, 3, -100]]}, [(1, 2), (2, 3)]),
        ({"input_ids": [1, 2, 3]}, [(1, 2), (2, 3), (3, 9)]),  # ended by eod
    ],
)
def test_which_targets_count(item, wanted):
    assert pairs(opened("listed", "valid", items=[item], eod=9), 1) == wanted


def test_text_with_a_tokenizer(tmp_path):
    tokenizer = train_tokenizer(["To be, or not to be: that is the question."] * 3, 300)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    data = opened("text", "valid", tokenizer=str(path), text_key="body")
    batch = data.batch([0])
    assert tokenizer.decode(batch.tokens[0].tolist()).startswith("To be, or not")
    assert (data.vocab_size, data.tokenizer_path) == (tokenizer.get_vocab_size(), path)
    ends = [int(ids[-1]) for ids in [data.inner.reader.document("To be", "").tokens]]
    assert ends == [data.eod]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"input_ids": [1.5, 2.0]}, r"input_ids holds float64 \(data, item 0 of epoch 0\): give whole numbers"),
        ({"input_ids": [[1, 2], [3, 4]]}, r"input_ids has shape \[2, 2\].*one dimension"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids can't be read"),
        ({"input_ids": ["a", "b"]}, "input_ids holds <U1"),
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "labels has 2 numbers and input_ids 3"),
        ({"input_ids": [1, -2, 3]}, "token -2"),
        ({"input_ids": [1, 2, 3], "labels": [1, -1, 3]}, "labels holds -1, which is not a token .*give .*-100"),
        ({"pair": [[1, 2, 3], [2, 3, -1]]}, "targets holds -1, which is not a token"),
        ({"body": "text"}, r"an item has the keys body.*text_key: body"),
        ({"text": "To be"}, "no tokenizer is named.*set tokenizer: PATH"),
    ],
)
def test_items_that_can_not_be_used(item, says):
    with pytest.raises(UserError, match=says):
        opened("listed", "valid", items=[item]).batch([0])


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("numbered", {"seq_len": None}, r"gives items, and the rows have no length.*set seq_len"),
        ("numbered", {"samples": 5}, "samples is the length of a function of an index"),
        ("numbered", {"packed": True}, "can't be called so: got an unexpected keyword argument 'packed'"),
        ("numbered", {"packing": "perhaps"}, "packing"),
        ("numbered", {"count": 0}, "gave no items for train"),
    ],
)
def test_keys_that_can_not_be_used(name, keys, says):
    with pytest.raises(UserError, match=says):
        opened(name, **keys)


def test_labels_beyond_the_vocabulary():
    reader = ItemReader(vocab_size=10)
    for item in ({"input_ids": [1, 2, 3], "labels": [1, 2, 99]}, (np.array([1, 2]), np.array([2, 10]))):
        with pytest.raises(UserError, match=r"holds (99|10), which is not a token of 0 to 9"):
            reader.document(item, "data")
    item = {"input_ids": [1, 2, 9], "labels": [-100, 99, 9], "loss_mask": [1, 0, 1]}  # 99 isn't counted
    assert reader.document(item, "data").labels.tolist() == [-100, -100, 9]


def test_data_without_pairs_are_not_read_for_ever():
    with pytest.raises(UserError, match="gave no item of two tokens or more"):
        opened("listed", items=[{"input_ids": [1]}, {"input_ids": []}]).batch([0])
