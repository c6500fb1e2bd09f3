"""The formats of fill-in-the-middle, by a tokenizer's special tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.serve.server.infill import FORMATS, infill
from scalewright.spec.errors import UserError
from serve.server.fake import byte_tokenizer, loaded


@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_a_tokenizer_s_own_tokens_are_used(number: int) -> None:
    prefix, suffix, middle, ends = FORMATS[number]
    special = ["<|endoftext|>", prefix, suffix, middle, ends[0]]
    model = replace(loaded(), tokenizer=byte_tokenizer(special), start=(1,))
    ids, stops = infill(model, "def f(", "):\n")
    assert [special[token - 256] for token in ids if token >= 256] == [prefix, suffix, middle]
    assert ids == [1, 257, *b"def f(", 258, *b"):\n", 259]
    assert stops == {256, 260}


def test_a_model_without_them_is_refused() -> None:
    with pytest.raises(UserError, match="no tokens for fill-in-the-middle"):
        infill(replace(loaded(), tokenizer=byte_tokenizer(["<fim_prefix>"])), "a", "b")
