"""A learnt tokenizer writes any text, and gives it back."""

from __future__ import annotations

import pytest

from scalewright.data.prepare import prepare
from scalewright.data.tokenizer import END, end_of_document, read_tokenizer, train_tokenizer, vocabulary_size
from scalewright.spec.errors import UserError

from .texts import words, write_tokenizer


@pytest.mark.parametrize("text", ["", "plain", words(50), "\x00\x07\U0001f980 \u0628\u064e", "a  b\t\n\r\n", END])
def test_every_text_comes_back(tmp_path, text):
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "t.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_smallest_has_every_byte():
    tokenizer = train_tokenizer(iter(["abc"]), 257)
    assert vocabulary_size(tokenizer) == 257
    assert tokenizer.token_to_id(END) == 0


def test_a_vocabulary_without_every_byte_is_refused(tmp_path):
    with pytest.raises(UserError, match="at least 257"):
        prepare("shakespeare", tmp_path / "tokens", vocab_size=256)


def test_truncation_of_a_given_one_is_switched_off(tmp_path):
    path = write_tokenizer(tmp_path / "t.json")
    tokenizer = read_tokenizer(path)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    assert len(read_tokenizer(tmp_path / "t.json").encode(words(50)).ids) > 9


def test_a_folder_with_a_tokenizer(tmp_path):
    write_tokenizer(tmp_path / "tokenizer.json", 300)
    assert vocabulary_size(read_tokenizer(tmp_path)) == 300
    with pytest.raises(UserError, match="no such tokenizer"):
        read_tokenizer(tmp_path / "none")


def test_the_end_of_a_document(tmp_path):
    path = write_tokenizer(tmp_path / "t.json")
    tokenizer = read_tokenizer(path)
    assert end_of_document(tokenizer, path) == 0
    assert end_of_document(tokenizer, path, "a") == tokenizer.token_to_id("a")
    with pytest.raises(UserError, match="has no token 'nope'"):
        end_of_document(tokenizer, path, "nope")
