"""The tokenizer's own result, faster: a text is cut into words, and each word is looked up.

    text  ──pattern──►  "The", " lob", "ster", ...  ──table──►  word numbers  ──gather──►  token ids

Byte-pair merges never cross a word, so a word always has the same tokens, and most words of a text were seen before.
The library's work for each word (hash it, keep its offsets, make objects) is left out. This holds for GPT-2's pattern
on byte-level BPE, which our own tokenizers use, and for characters whose class never changes between versions of
Unicode; other tokenizers, and words around other characters, go through the library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens import spread

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int32 = NDArray[np.int32]

_LARGEST_TABLE = 96 << 20  # bytes, about; a fuller table is begun anew
_WORD_BYTES = 160  # of the table for a word, besides its characters

# Blocks whose characters are all assigned, and of the same class, since Unicode 6: Latin, Greek letters,
# Cyrillic, punctuation, currency, arrows and mathematics, kana, the common Han characters.
_KNOWN = (
    (0x0000, 0x0236), (0x03B1, 0x03C9), (0x0400, 0x0481), (0x2000, 0x2027), (0x202F, 0x205E), (0x20A0, 0x20AC),
    (0x2190, 0x22FF), (0x3001, 0x3011), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5),
)  # fmt: skip
_SPACES = "\t\n\v\f\r \x85\xa0\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class WordEncoder:
    """Token ids of texts, equal to `tokenizer.encode_batch(texts, add_special_tokens=False)`.

    But for `special` tokens: these are read as such where they stand in a text.
    """

    def __init__(self, tokenizer: Tokenizer, special: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if special else None
        self.by_words = has_known_words(tokenizer)
        self._begin()

    def __call__(self, texts: list[str]) -> list[Int32]:
        """The ids of each text."""
        if self._special is not None:
            parts = [self._special.split(text) for text in texts]  # text, token, text, ...
            encoded = iter(self._encode([text for texts in parts for text in texts[::2]]))
            return [
                np.concatenate([self._id(part) if n % 2 else next(encoded) for n, part in enumerate(texts)])
                for texts in parts
            ]
        return self._encode(texts)

    def _id(self, token: str) -> Int32:
        return np.array([self.tokenizer.token_to_id(token)], np.int32)

    def _encode(self, texts: list[str]) -> list[Int32]:
        sections = [list(known_sections(text)) if self.by_words else [(text, False)] for text in texts]
        flat = list(chain.from_iterable(sections))
        looked_up = iter(self._look_up([text for text, plain in flat if plain]))
        others = [text for text, plain in flat if not plain]
        encodings = iter(self.tokenizer.encode_batch_fast(others, add_special_tokens=False) if others else ())
        ids = (next(looked_up) if plain else np.array(next(encodings).ids, np.int32) for _, plain in flat)
        return [np.concatenate(list(islice(ids, len(parts)))) for parts in sections]

    def _begin(self) -> None:
        self._numbers = _Numbers()
        self._ids = np.empty(1 << 16, np.int32)  # the tokens of all words, end to end
        self._starts, self._lengths = np.empty(1 << 14, np.int64), np.empty(1 << 14, np.int64)
        self._learnt = self._used = self._size = 0

    def _look_up(self, texts: list[str]) -> list[Int32]:
        if self._size > _LARGEST_TABLE:
            self._begin()
        find = _pattern().findall
        words = [find(text) for text in texts]
        counts = np.fromiter(map(len, words), np.int64, len(words))
        numbers = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(words)), np.int64, int(counts.sum()))
        if len(self._numbers) > self._learnt:
            self._learn(list(islice(self._numbers, self._learnt, None)))
        lengths = self._lengths[numbers]
        ids = self._ids[spread(self._starts[numbers], lengths)]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[np.cumsum(counts)]
        return np.split(ids, ends[:-1])

    def _learn(self, words: list[str]) -> None:
        encodings = self.tokenizer.encode_batch_fast(words, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        first, last = self._learnt, self._learnt + len(ids)
        total = self._used + int(lengths.sum())
        self._ids = _room(self._ids, total)
        self._starts, self._lengths = _room(self._starts, last), _room(self._lengths, last)
        self._ids[self._used : total] = list(chain.from_iterable(ids))
        self._starts[first:last] = self._used + np.cumsum(lengths) - lengths
        self._lengths[first:last] = lengths
        self._learnt, self._used = last, total
        self._size += sum(map(len, words)) + _WORD_BYTES * len(words)


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _room(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, or a copy with room for `size` elements, twice as large as needed."""
    if size <= len(array):
        return array
    larger = np.empty(2 * size, array.dtype)
    larger[: len(array)] = array
    return larger


def known_sections(text: str) -> Iterator[tuple[str, bool]]:
    """The text in sections, and whether all characters of each are known; cut where words end for certain.

    Such a place is before a space that follows something else: no word has a space but at its front.
    """
    start = 0
    while match := _strange().search(text, start):
        first = _cut_before(text, start, match.start())
        if first > start:
            yield text[start:first], True
        last = _cut_after(text, match.end())
        while (match := _strange().search(text, last)) and _cut_before(text, last, match.start()) == last:
            last = _cut_after(text, match.end())
        yield text[first:last], False
        start = last
    if start < len(text) or not text:
        yield text[start:], True


def _cut_before(text: str, start: int, cut: int) -> int:
    """The last cut from `start` to `cut`; `start` is one."""
    while (cut := text.rfind(" ", start + 1, cut)) > start:
        if not text[cut - 1].isspace():
            return cut
    return start


def _cut_after(text: str, cut: int) -> int:
    """The first cut from `cut` on; the end is one."""
    while (cut := text.find(" ", cut)) >= 0:
        before = text[cut - 1] if cut else " "
        if not before.isspace() and before != "\u180e":  # a space in older versions of Unicode
            return cut
        cut += 1
    return len(text)


def has_known_words(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is byte-level BPE over GPT-2's pattern, nothing before it, nothing at random."""
    config = json.loads(tokenizer.to_str())
    words, model = config["pre_tokenizer"] or {}, config["model"]
    plain = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words.get("add_prefix_space")
    parts = not any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    special = all(token["special"] for token in config["added_tokens"]) and tokenizer.encode_special_tokens
    return bool(plain and model["type"] == "BPE" and parts and special and config["normalizer"] is None)


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    """GPT-2's pattern with its classes written out: contractions, words, numbers, signs, spaces."""
    letters, numbers = _class("L"), _class("N")
    signs = f"[^{letters}{numbers}{_SPACES}]"
    space, no_space = f"[{_SPACES}]", f"[^{_SPACES}]"
    return re.compile(rf"'(?:[stmd]|re|ve|ll)| ?[{letters}]+| ?[{numbers}]+| ?{signs}+|{space}+(?!{no_space})|{space}+")


@lru_cache(maxsize=1)
def _strange() -> re.Pattern[str]:
    blocks = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _KNOWN)
    return re.compile(f"[^{blocks}]")


def _class(kind: str) -> str:
    """The known characters of a Unicode category, as the inside of a bracket expression."""
    spans: list[list[int]] = []
    for first, last in _KNOWN:
        for code in range(first, last + 1):
            if unicodedata.category(chr(code))[0] != kind:
                continue
            if spans and spans[-1][1] == code - 1:
                spans[-1][1] = code
            else:
                spans.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in spans)
