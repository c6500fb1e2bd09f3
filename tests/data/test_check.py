"""Damage in token files, wrong numbers in metadata, ids that a model has no row for: each is an error."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import time
from contextlib import suppress

import numpy as np
import pytest

from scalewright.data import check, shards
from scalewright.data.check import BackgroundCheck, check_file, unchecked
from scalewright.data.dataset import open_data
from scalewright.data.prepare import prepare
from scalewright.data.readers import open_tokens
from scalewright.data.tokens import TokenFile
from scalewright.evaluate.validate import validate  # noqa: F401 - imported before the clock of a test runs
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec
from scalewright.train.batches import in_vocabulary

from .test_readers import write_megatron
from .texts import words


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared text of some 3 MB: more blocks than one."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "a.txt").write_text(words(600_000))
    prepare(folder / "a.txt", folder / "out", vocab_size=300, valid_fraction=0.02, workers=1, progress=None)
    return folder / "out"


@pytest.fixture
def out(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "out")


@pytest.fixture
def large(monkeypatch):
    """Every split counts as a large one."""
    monkeypatch.setattr(shards, "AT_OPENING", 0)


def opened(path, **source):
    data = {"train": {"path": str(path), **source}, "seq_len": 64}
    return open_data(DataSpec.parse(data), "train")


def flip(path, start, count=2):
    data = bytearray(path.read_bytes())
    data[start : start + count] = bytes(byte ^ 1 for byte in data[start : start + count])
    path.write_bytes(data)


def biggest(out):
    return max((out / "train").glob("tokens-*.bin"), key=lambda path: path.stat().st_size)


def wait_for_damage(data):
    with BackgroundCheck([data], 0, 1):
        end = time.monotonic() + 20
        while data.damage is None and time.monotonic() < end:
            time.sleep(0.01)


@pytest.mark.parametrize("name", ["tokens", "documents.bin"])
def test_a_sample_finds_a_seventh_of_other_bytes(out, large, name):
    path = biggest(out) if name == "tokens" else out / "train" / name
    flip(path, 0, max(path.stat().st_size // 7, 8))
    with pytest.raises(UserError, match=r"its checksum differs.*bytes \d+ to \d+.*prepare"):
        opened(out)


def test_a_bit_anywhere_is_found_meanwhile(out, large, monkeypatch):
    monkeypatch.setattr(shards, "check_sample", lambda files, own: iter(()))
    path = biggest(out)
    flip(path, (1 << 20) + 77, 1)
    data = opened(out)
    data.batch([0])
    wait_for_damage(data)
    with pytest.raises(UserError, match=rf"checksum differs.*{path.name}, bytes 1048576 to "):
        data.batch([0])


def test_data_of_an_older_release_open_and_are_checked(out, large):
    for folder in ("train", "valid"):
        metadata = json.loads((out / folder / "metadata.json").read_text())
        for entry in (*metadata["shards"], metadata["index"]):
            del entry["block_crc32"]
        (out / folder / "metadata.json").write_text(json.dumps(metadata))
    data = opened(out)
    assert "no checksums of blocks" in unchecked(data.stores)
    wait_for_damage_free(data)
    flip(biggest(out), 98, 1)
    wait_for_damage(data)
    assert f"{biggest(out).name}, bytes 0 to" in str(data.damage)


def wait_for_damage_free(data):
    with BackgroundCheck([data], 0, 1) as running:
        running._thread.join(20)
        assert not running._thread.is_alive()
    assert data.damage is None


def test_the_check_ends_with_its_block_and_takes_little_time(out, large, monkeypatch):
    data = opened(out)
    monkeypatch.setattr(check, "_SHARE", 1e-9)  # so that it waits for ever after its first block
    with BackgroundCheck([data], 0, 1) as running:
        time.sleep(0.1)
        assert running._thread.is_alive()
    assert not running._thread.is_alive()


def test_ranks_of_a_node_share_the_files(out, large):
    data = opened(out)
    parts = [BackgroundCheck([data], rank, 3)._files for rank in range(3)]
    assert sorted(str(file.path) for part in parts for file, _ in part) == sorted(
        str(file.path) for file in (*data.stores[0].files, data.stores[0].index)
    )


@pytest.mark.parametrize("kind", ["missing", "folder", "loop", "pipe"])
def test_a_tokenizer_that_is_no_file_is_refused(out, kind):
    path = out / "tokenizer.json"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(UserError, match=r"missing, or is no file.*tokenizer\.json"):
        opened(out)


@pytest.mark.parametrize("name", ["metadata.json", "train/metadata.json"])
def test_a_key_of_the_metadata_that_is_written_twice(out, name):
    path = out / name
    path.write_text('{"vocab_size": 9,' + path.read_text().lstrip()[1:])
    with pytest.raises(UserError, match="'vocab_size' is written twice"):
        opened(out)


def test_another_tokenizer_is_refused(out):
    (out / "tokenizer.json").write_text((out / "tokenizer.json").read_text() + " ")
    with pytest.raises(UserError, match=r"not the one that made these tokens.*tokenizer\.json"):
        opened(out)


# -- ids ---------------------------------------------------------------------------------------------


def write(folder, kind, ids):
    """Tokens of a kind, and how a run names them; byte 8 bytes an id after `start`."""
    path = folder / f"{kind}.bin"
    if kind == "npy":
        path = folder / "a.npy"
        np.save(path, np.array(ids, np.int64))
        return {"path": str(path)}, path, path.stat().st_size - 8 * len(ids), 8
    if kind == "megatron":
        write_megatron(folder / "m", [ids], [1], "<i4", 4)
        return {"path": str(folder / "m")}, folder / "m.bin", 0, 4
    np.array(ids, kind).tofile(path)
    return {"path": str(path), "format": kind}, path, 0, np.dtype(kind).itemsize


@pytest.mark.parametrize("wrong", [70, -1])
@pytest.mark.parametrize("kind", ["uint16", "int32", "npy", "megatron"])
@pytest.mark.parametrize("packing", [True, False])
def test_an_id_beyond_the_vocabulary_is_named_with_its_byte(tmp_path, kind, packing, wrong):
    if kind == "uint16":
        wrong = 70
    ids = [1] * 1000 + [wrong] + [2] * 999
    source, path, start, width = write(tmp_path, kind, ids)
    spec = DataSpec.parse({"train": source, "valid": source, "seq_len": 50, "packing": packing})
    for split in ("train", "valid"):
        data = in_vocabulary(open_data(spec, split), 67)
        with pytest.raises(UserError, match=f"token {wrong}, but the model's vocab_size is 67") as caught:
            data.batch(range(len(data)))
        assert f"{path}, byte {start + 1000 * width}" in str(caught.value)
        wait_for_damage(data)
        assert str(data.damage) == str(caught.value)
    assert "no checksums of" in unchecked(data.stores)


def test_an_end_of_document_beyond_the_vocabulary(tmp_path):
    source, *_ = write(tmp_path, "uint16", [1] * 300)
    with pytest.raises(UserError, match="eod 70 is not below the model's vocab_size 67"):
        in_vocabulary(opened(source.pop("path"), **source, eod=70), 67)


def test_validation_data_of_a_larger_vocabulary_than_the_models(out):
    spec = DataSpec.parse({"train": str(out), "valid": str(out), "seq_len": 64})
    with pytest.raises(UserError, match=r"but the model's vocab_size is 20.*tokens-\d+\.bin, byte \d+"):
        in_vocabulary(open_data(spec, "valid"), 20).batch(range(8))


def test_a_file_that_became_shorter(tmp_path):
    path = tmp_path / "a.bin"
    np.zeros(100, np.uint16).tofile(path)
    with pytest.raises(UserError, match="is damaged"):
        list(check_file(TokenFile(path, np.dtype("<u2"), 101)))
    with pytest.raises(UserError, match="cannot read"):
        list(check_file(TokenFile(tmp_path, np.dtype("<u2"), 101)))


# -- metadata ----------------------------------------------------------------------------------------

MISSING = object()
VALUES = [MISSING, None, -1, 0, 1, 2**70, "x", [], {}, math.nan, True, 0.5]


def leaves(data, path=()):
    """Every key of nested data, by its path."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def changed(data, path, value):
    data = copy.deepcopy(data)
    owner = data
    for key in path[:-1]:
        owner = owner[key]
    if value is MISSING:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return data


@pytest.mark.parametrize("name", ["train/metadata.json", "metadata.json"])
def test_no_wrong_value_of_the_metadata_is_taken(out, large, monkeypatch, name):
    """For every key and every wrong value: an error of one line, or the very same data."""
    monkeypatch.setattr(shards, "check_sample", lambda files, own: iter(()))
    path = out / name
    whole = json.loads(path.read_text())
    store = open_tokens(out)
    unused = {"options", "inputs", "left_out", "mended", "bytes_per_token", "valid"}
    unused |= {"block_crc32", "special_tokens"}
    unused |= {"shards", "format"} if name == "metadata.json" else set()  # of another tool, it isn't compared
    for keys in leaves(whole):
        for value in VALUES:
            path.write_text(json.dumps(changed(whole, keys, value)))
            with suppress(UserError):
                again = open_tokens(out)
                assert _facts(again) == _facts(store), (keys, value)
                assert unused & set(keys[-2:]) or keys[0] in unused or value == _at(whole, keys), (keys, value)


def _at(data, keys):
    for key in keys:
        data = data[key]
    return data


def _facts(store):
    names = [(file.path, file.dtype, file.count, file.sha256) for file in (*store.files, store.index)]
    return (names, store.eod, store.vocab_size, store.text_bytes, store.tokenizer_checksum, store.offsets.tolist())


@pytest.mark.parametrize(
    ("key", "value"), [("text_bytes", 1), ("documents", 0), ("documents", -1), ("shards", []), ("eod", 299)]
)
def test_the_file_and_the_fix_are_named(out, key, value):
    path = out / "train" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UserError, match=rf"damaged: {key}.*train/metadata\.json.*scalewright prepare"):
        opened(out)


def test_a_split_without_the_folder_around_it(out, tmp_path):
    shutil.copytree(out / "train", tmp_path / "alone" / "train")
    (tmp_path / "alone" / "metadata.json").write_text('{"another": "tool"}')
    assert opened(tmp_path / "alone" / "train").stores[0].tokens == opened(out).stores[0].tokens
