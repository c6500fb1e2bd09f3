"""The kinds of items of a user's dataset, and the documents that they become.

item                                        document
[5, 2, 9], array or tensor                  these tokens, each one counted as a target
{"input_ids": …}                            the same; "attention_mask" 0 is padding, and left out
    with "labels": …                        aligned with input_ids (as in transformers); -100 isn't counted
    with "loss_mask": …                     aligned with input_ids; 0 isn't counted
(inputs, targets)                           two arrays of one length, targets already shifted
"text", {"text": …}                         tokenized, where a tokenizer is named, begun as it does and ended
                                            by its eod
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalewright.data.batch import IGNORED
from scalewright.data.tokenizer import (
    end_of_document,
    read_tokenizer,
    start_of_document,
    tokenizer_file,
    vocabulary_size,
)
from scalewright.spec.errors import UserError, nearest

Int64 = NDArray[np.int64]


class Document(NamedTuple):
    """Tokens, and each token's label when it is the target of the one before it."""

    tokens: Int64  # [n]
    labels: Int64  # [n], IGNORED where it is not counted


@dataclass(frozen=True)
class ItemReader:
    """Turns items into documents."""

    text_key: str = "text"
    eod: int | None = None  # appended to items that are text or bare tokens
    tokenizer: Any = None  # tokenizers.Tokenizer
    tokenizer_path: Path | None = None
    vocab_size: int | None = None
    bos: tuple[int, ...] | None = None  # put before items that are text; None: no tokenizer

    @classmethod
    def of(cls, tokenizer: str | None, text_key: str, eod: int | None, bos: str = "auto") -> ItemReader:
        """The reader that a run file's keys describe; raises UserError for a tokenizer that isn't one."""
        if tokenizer is None:
            return cls(text_key, eod)
        path = tokenizer_file(tokenizer)
        loaded = read_tokenizer(path)
        end = eod if eod is not None else end_of_document(loaded, path, None)
        start = start_of_document(loaded, path, bos)
        return cls(text_key, end, loaded, path, vocabulary_size(loaded), start)

    def document(self, item: Any, source: str) -> Document:
        """The document of an item; raises UserError for one that is of no kind above."""
        if isinstance(item, str):
            return self._ended(self._encode(item, source))
        if isinstance(item, Mapping):
            return self._from_keys(item, source)
        if isinstance(item, tuple) and len(item) == 2 and all(np.ndim(part) == 1 for part in item):
            return self._from_pair(item, source)
        return self._ended(self._tokens(item, source))

    def _from_keys(self, item: Mapping[str, Any], source: str) -> Document:
        if "input_ids" not in item:
            if self.text_key in item:
                return self.document(str(item[self.text_key]), source)
            keys = [str(key) for key in item]
            near = nearest(self.text_key, keys) or keys[:3]
            how = f"give input_ids, or name the text's key: text_key: {near[0] if near else 'text'}"
            raise UserError(f"an item has the keys {', '.join(keys[:5]) or 'of nothing'}", source, how)
        tokens = self._tokens(item["input_ids"], source)
        if "labels" not in item and "loss_mask" not in item and "attention_mask" not in item:
            return self._ended(tokens)
        labels = self._like(tokens, item["labels"], "labels", source) if "labels" in item else tokens
        if "loss_mask" in item:
            counted = self._like(tokens, item["loss_mask"], "loss_mask", source) != 0
            labels = np.where(counted, labels, IGNORED)
        if "attention_mask" in item:
            present = self._like(tokens, item["attention_mask"], "attention_mask", source) != 0
            tokens, labels = tokens[present], labels[present]
        self._check_labels(labels, "labels", source)
        return Document(tokens, labels)

    def _from_pair(self, item: tuple[Any, Any], source: str) -> Document:
        """(inputs, targets): an input's target is its own label's neighbour in a document."""
        inputs = self._tokens(item[0], source)
        targets = self._like(inputs, item[1], "targets", source)
        self._check_labels(targets, "targets", source)
        last = np.maximum(targets[-1:], 0)
        return Document(np.concatenate([inputs, last]), np.concatenate([np.full(1, IGNORED), targets]))

    def _encode(self, text: str, source: str) -> Int64:
        if self.tokenizer is None:
            how = "set tokenizer: PATH/tokenizer.json beside python:"
            raise UserError("the items are text, and no tokenizer is named", source, how)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array([*(self.bos or ()), *ids] if ids else ids, dtype=np.int64)

    def _ended(self, tokens: Int64) -> Document:
        if self.eod is not None and len(tokens) and tokens[-1] != self.eod:
            tokens = np.append(tokens, np.int64(self.eod))
        return Document(tokens, tokens)

    def _tokens(self, value: Any, source: str) -> Int64:
        tokens = _whole_numbers(value, "input_ids", source)
        limit = self.vocab_size
        if len(tokens) and (tokens.min() < 0 or (limit is not None and tokens.max() >= limit)):
            wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
            size = f"a vocabulary of {limit}" if limit is not None else "no vocabulary"
            raise UserError(f"token {wrong} is in {size}", source, "use the tokenizer that made the tokens")
        return tokens

    def _check_labels(self, labels: Int64, key: str, source: str) -> None:
        wrong = labels[outside_vocabulary(labels, self.vocab_size)]
        if len(wrong):
            size = f"a token of 0 to {self.vocab_size - 1}" if self.vocab_size is not None else "a token"
            how = f"give a token's number, or {IGNORED} for a token that isn't counted"
            raise UserError(f"{key} holds {wrong[0]}, which is not {size}", source, how)

    def _like(self, tokens: Int64, value: Any, key: str, source: str) -> Int64:
        numbers = _whole_numbers(value, key, source)
        if len(numbers) != len(tokens):
            how = "give one for each token"
            raise UserError(f"{key} has {len(numbers)} numbers and input_ids {len(tokens)}", source, how)
        return numbers


def outside_vocabulary(labels: NDArray[np.integer[Any]], limit: int | None) -> NDArray[np.bool_]:
    """Where a label is neither IGNORED nor one of `limit` tokens (null: as many as there are); any shape."""
    last = np.iinfo(np.int64).max if limit is None else limit - 1
    outside: NDArray[np.bool_] = (labels != IGNORED) & ((labels < 0) | (labels > last))
    return outside


def _whole_numbers(value: Any, key: str, source: str) -> Int64:
    """Numbers of a list, an array or a tensor, int64 [n]; raises UserError for another shape or type."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths; a tensor on a GPU
        raise UserError(f"{key} can't be read: {error}", source, "give one list of whole numbers") from None
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1:
        raise UserError(f"{key} has shape {list(array.shape)}", source, "give one dimension: an item is one document")
    if array.dtype.kind == "b" and key.endswith("mask"):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        what = f"{key} holds {array.dtype if array.dtype.kind != 'O' else type(array[0]).__name__}"
        raise UserError(what, source, "give whole numbers")
    return array.astype(np.int64)
