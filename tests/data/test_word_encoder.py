"""Looked up or not, the ids are the library's own, on any text."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tokenizers import normalizers, pre_tokenizers

from scalewright.data import word_encoder as under_test
from scalewright.data.prepare import corpus
from scalewright.data.tokenizer import read_tokenizer, train_tokenizer
from scalewright.data.word_encoder import WordEncoder, has_known_words, known_sections

from .texts import words, write_tokenizer

ODD = [
    "",
    " ",
    "\n",
    "  \n\n  a",
    "it's we'll 'tis '''s 'S they'VE",
    "\x1c\x1d\x1e\x1f \x00 \x85 \xa0 a\xa0b",  # Python calls the first four spaces; the library doesn't
    "x² ½ Ⅷ 三 一二 ٣ ª º",
    "naïve café İstanbul ǅ ß ﬁ ŉ",
    "“quotes” — and … ‘more’ €5 → ∑\u2009thin\u200bzero",
    "日本語のテキスト、です。カタカナ",
    "emoji 🎉🎊 mixed 👩‍💻 in",
    "a\u0301 combining \u0345",
    "Привет, мир! ΑΒΓ αβγ",
    "<|endoftext|> as text",
    "-" * 300 + "=" * 200,
    "tab\tand\rreturn\r\nlines \f\v",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(write_tokenizer(tmp_path_factory.mktemp("t") / "t.json"))


def same(tokenizer, texts):
    found = WordEncoder(tokenizer)(texts)
    expected = tokenizer.encode_batch(texts, add_special_tokens=False)
    assert [ids.tolist() for ids in found] == [encoding.ids for encoding in expected]


def test_odd_texts(tokenizer):
    assert has_known_words(tokenizer)
    same(tokenizer, ODD)
    for text in ODD:
        same(tokenizer, [text, text])
    same(tokenizer, ["".join(ODD)])


def test_any_characters(tokenizer):
    """Random texts from the known blocks, their edges, and everywhere."""
    chance = random.Random(1)
    edges = [code + step for span in under_test._KNOWN for code in span for step in (-1, 0, 1) if code + step >= 0]
    for pool in (range(0x250), range(0x3000), edges, range(0x10000), [*range(0x20, 0x7F), 0x2019, 0xE9, 0x4E00]):
        choices = [chr(code) for code in pool if not 0xD800 <= code < 0xE000]
        same(tokenizer, ["".join(chance.choices(choices, k=40)) for _ in range(200)])


def test_strange_characters_among_others(tokenizer):
    """Words with characters of any kind between spaces of any number: only those go through the library."""
    chance = random.Random(2)
    strange = ["\u0915\u093e", "\U0001f980", "\u180e", "\u1680", "\u0301", "\u1e9e", "\ufeff"]
    parts = ["word", " ", "  ", "\n", " \n", ".", "'s", "42", "\u3000", "\x1f", *strange]
    texts = ["".join(chance.choices(parts, k=60)) for _ in range(500)]
    same(tokenizer, texts)
    for text in texts:
        assert "".join(section for section, _ in known_sections(text)) == text
    sections = list(known_sections(words(50) + " \U0001f980 " + words(50)))
    assert [known for _, known in sections] == [True, False, True]
    assert len(sections[1][0]) < 20


def test_real_texts(tokenizer):
    for name in ("shakespeare", "wikitext-2"):
        for file in corpus(name, Counter()):
            with open(file.path, encoding="utf-8", newline="") as stream:
                same(tokenizer, [stream.read(200_000)])


def test_a_full_table_begins_anew(tokenizer, monkeypatch):
    monkeypatch.setattr(under_test, "_LARGEST_TABLE", 2000)
    encoder = WordEncoder(tokenizer)
    for seed in range(5):
        text = words(200, seed) + f" novel{seed} unseen{seed}"
        assert encoder([text])[0].tolist() == tokenizer.encode(text).ids
    assert len(encoder._numbers) < 40


@pytest.mark.parametrize("change", ["normalizer", "prefix", "pattern", "added", "special"])
def test_other_tokenizers_go_through_the_library(tmp_path, change):
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "t.json"))
    if change == "normalizer":
        tokenizer.normalizer = normalizers.Lowercase()
    elif change == "prefix":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif change == "pattern":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif change == "added":
        tokenizer.add_tokens(["lobster"])
    else:
        tokenizer.encode_special_tokens = False
    assert not has_known_words(tokenizer)
    same(tokenizer, [words(300), "A <|endoftext|> 1234 LOBSTER"])


def test_training_is_the_same_twice():
    texts = [words(500, k) for k in range(5)]
    assert train_tokenizer(iter(texts), 350).to_str() == train_tokenizer(iter(texts), 350).to_str()
