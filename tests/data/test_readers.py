"""Megatron, NumPy and bare files, written here by hand and read as they are."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from scalewright.data.dataset import open_data
from scalewright.data.readers import open_tokens
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec

from .stores import document


def write_megatron(prefix, sequences, documents, dtype="<u2", code=8, version=1):
    """A pair as Megatron-LM's IndexedDatasetBuilder writes it; `documents`: sequences in each."""
    np.concatenate([np.array(s, dtype) for s in sequences]).tofile(f"{prefix}.bin")
    sizes = np.array([len(s) for s in sequences], "<i4")
    pointers = np.concatenate([[0], np.cumsum(sizes[:-1], dtype="<i8") * np.dtype(dtype).itemsize]).astype("<i8")
    firsts = np.concatenate([[0], np.cumsum(documents)]).astype("<i8")
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(sizes), len(firsts)))
        file.write(sizes.tobytes() + pointers.tobytes() + firsts.tobytes())


SEQUENCES = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
@pytest.mark.parametrize(("dtype", "code"), [("<u2", 8), ("<i4", 4), ("<i8", 5)])
def test_megatron(tmp_path, suffix, dtype, code):
    prefix = tmp_path / "my.corpus_text_document"
    write_megatron(prefix, SEQUENCES, [2, 1, 1], dtype, code)
    store = open_tokens(f"{prefix}{suffix}")
    assert store.offsets.tolist() == [0, 5, 6, 10]
    assert [document(store, d).tolist() for d in range(3)] == [[1, 2, 3, 4, 5], [6], [7, 8, 9, 10]]


def test_megatron_folder_of_pairs_and_empty_documents(tmp_path):
    write_megatron(tmp_path / "a", SEQUENCES, [2, 0, 1, 1])
    write_megatron(tmp_path / "b", [[20, 21]], [1])
    store = open_tokens(tmp_path)
    assert store.documents == 4
    assert document(store, 3).tolist() == [20, 21]


def test_megatron_trains_without_leaks(tmp_path):
    write_megatron(tmp_path / "a", SEQUENCES, [1, 1, 1, 1])
    data = open_data(DataSpec.parse({"train": str(tmp_path / "a"), "seq_len": 4}), "train", seed=1)
    batch = data.batch(range(len(data)))
    assert sorted(batch.targets[batch.targets != -100].tolist()) == [2, 3, 5, 8, 9, 10]


def test_damaged_megatron(tmp_path):
    write_megatron(tmp_path / "a", SEQUENCES, [4])
    (tmp_path / "a.bin").write_bytes(b"12")
    with pytest.raises(UserError, match="2 bytes, its index says 20"):
        open_tokens(tmp_path / "a")
    (tmp_path / "a.bin").unlink()
    with pytest.raises(UserError, match="no token file beside it"):
        open_tokens(tmp_path / "a")
    index = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(index[:50])
    with pytest.raises(UserError, match="cut off"):
        open_tokens(tmp_path / "a")
    (tmp_path / "a.idx").write_bytes(b"something else that is long enough to be an index")
    with pytest.raises(UserError, match="not a Megatron index"):
        open_tokens(tmp_path / "a")
    write_megatron(tmp_path / "c", SEQUENCES, [4], version=2)
    with pytest.raises(UserError, match="version 2"):
        open_tokens(tmp_path / "c")


def test_npy_of_one_dimension(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.array([5, 6, 0, 7, 8, 9, 0, 4], np.int32))
    assert open_tokens(path).offsets.tolist() == [0, 8]
    store = open_tokens(path, eod=0)
    assert store.offsets.tolist() == [0, 3, 7, 8]
    assert document(store, 1).tolist() == [7, 8, 9, 0]


def test_npy_of_two_dimensions(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(12, dtype=np.uint16).reshape(3, 4))
    store = open_tokens(tmp_path / "t.npy")
    assert store.offsets.tolist() == [0, 4, 8, 12]
    assert document(store, 2).tolist() == [8, 9, 10, 11]


def test_folder_of_npy_splits(tmp_path):
    np.save(tmp_path / "train.npy", np.arange(9))
    np.save(tmp_path / "valid.npy", np.arange(5))
    assert open_tokens(tmp_path, "train").tokens == 9
    assert open_tokens(tmp_path, "valid").tokens == 5


@pytest.mark.parametrize("array", [np.zeros(4), np.zeros((2, 2, 2), np.int64), np.asfortranarray(np.ones((3, 2), int))])
def test_npy_that_holds_no_tokens(tmp_path, array):
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(UserError, match="token ids are whole numbers"):
        open_tokens(tmp_path / "t.npy")


def test_cut_off_npy(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(1000))
    (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:500])
    with pytest.raises(UserError, match=r"not a readable \.npy"):
        open_tokens(tmp_path / "t.npy")


def test_bare_numbers_only_when_said_so(tmp_path):
    """nanoGPT's folder: train.bin and val.bin, uint16 without a header."""
    np.arange(20, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(6, dtype=np.uint16).tofile(tmp_path / "val.bin")
    with pytest.raises(UserError, match="format: uint16"):
        open_tokens(tmp_path)
    spec = DataSpec.parse(
        {
            "train": {"path": str(tmp_path), "format": "uint16"},
            "valid": {"path": str(tmp_path), "format": "uint16"},
            "seq_len": 4,
        }
    )
    assert len(open_data(spec, "train")) == 5
    assert open_data(spec, "valid").batch([0]).tokens.tolist() == [[0, 1, 2, 3]]
    (tmp_path / "train.bin").write_bytes(b"123")
    with pytest.raises(UserError, match="whole number of uint16"):
        open_data(spec, "train")


def test_text_is_not_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UserError, match="not a token file"):
        open_tokens(tmp_path / "a.txt")
