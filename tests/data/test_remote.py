"""Tokens in a store: what `prepare` puts there is what training reads; damage is named, and isn't kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scalewright.data.dataset import open_data
from scalewright.data.prepare import prepare
from scalewright.data.readers import open_tokens
from scalewright.data.remote import fetch_tokens
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec

pytest.importorskip("obstore")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of tokens that `prepare` put into a store; the same are in the folder `local`."""
    monkeypatch.setenv("SCALEWRIGHT_CACHE", str(tmp_path / "cache"))
    fetch_tokens.cache_clear()
    text, url = tmp_path / "text.txt", f"file://{tmp_path}/store"
    text.write_text("The cat sat on the mat, and the dog on the log.\n\n" * 300)
    for out in (tmp_path / "local", url):
        made = prepare([text], out, vocab_size=300, workers=1, progress=None)
        assert made.out == str(out)
    return url


def test_it_is_the_same_data(prepared, tmp_path):
    local, there = (
        DataSpec.parse({"train": str(p), "valid": str(p), "seq_len": 32}) for p in (tmp_path / "local", prepared)
    )
    for split in ("train", "valid"):
        ours, theirs = open_data(local, split, 3), open_data(there, split, 3)
        assert len(ours) == len(theirs)
        for one, other in ((ours.batch(range(3)), theirs.batch(range(3))),):
            assert np.array_equal(one.tokens, other.tokens)
            assert np.array_equal(one.targets, other.targets)
    assert not list((tmp_path / "store").rglob("pieces"))


def test_the_same_again_is_nothing_to_do_and_others_are_refused(prepared, tmp_path):
    (tmp_path / "other.txt").write_text("Something else altogether. " * 300)
    prepare([tmp_path / "text.txt"], prepared, vocab_size=300, workers=1, progress=None)
    with pytest.raises(UserError, match="--overwrite"):
        prepare([tmp_path / "other.txt"], prepared, vocab_size=300, workers=1, progress=None)
    prepare([tmp_path / "other.txt"], prepared, vocab_size=300, workers=1, progress=None, overwrite=True)
    fetch_tokens.cache_clear()
    assert open_tokens(prepared).tokens != open_tokens(tmp_path / "local").tokens


def test_a_damaged_shard_is_named_and_forgotten(prepared, tmp_path):
    (shard,) = (tmp_path / "store" / "train").glob("tokens-*.bin")
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(UserError, match=f"copy of {prepared} is damaged"):
        open_tokens(prepared)
    shard.write_bytes(good)
    assert open_tokens(prepared).tokens == open_tokens(tmp_path / "local").tokens


def test_one_file_and_a_pair_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALEWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "store").mkdir()
    np.save(tmp_path / "store" / "tokens.npy", np.arange(100, dtype=np.uint16))
    (tmp_path / "store" / "tokens-2.npy").write_bytes(b"another")
    assert open_tokens(f"file://{tmp_path}/store/tokens.npy").tokens == 100
    with pytest.raises(UserError, match="no tokens"):
        open_tokens(f"file://{tmp_path}/store/nothing.npy")
