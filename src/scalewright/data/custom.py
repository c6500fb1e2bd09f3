"""A user's own data: `data: {python: package.module:name, seq_len: 128, ...}`; the kind of object decides.

    an object with batch(indices) and len()       batches as they are (see `Batch`)
    an object with [i] and len()                  torch `Dataset`, Hugging Face `Dataset`, a list
    an object to iterate over                     torch `IterableDataset`, a streamed Hugging Face one
    a generator function, `def texts(): yield …`  called again for every epoch
    a function with an argument `index`           sample by sample, never called beforehand

All but the first yield items (see `items.py`), and their rows are made here or in `reading.py`. The name is
called with the arguments beside it, and with `split` and `seed` if it takes them. Without packing, items by
number are a document a row, row i at once, on any rank:

    i -> epoch i / n, item order[i mod n] -> document -> a row, padded   (packed, it needs all items before)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scalewright.data.batch import IGNORED, Batch
from scalewright.data.items import ItemReader
from scalewright.data.reading import SequentialRows
from scalewright.data.sources import Indexed, Items, Streamed
from scalewright.spec.base import Spec
from scalewright.spec.ends import Ends
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef
from scalewright.spec.user_code import import_object

VALID_NAMES = ("valid", "validation", "val", "dev", "test")


class ItemKeys(Spec):
    """The keys beside `python` for making rows of items."""

    seq_len: int | None = Field(None, ge=2)
    packing: bool = True
    document_mask: bool = True
    tokenizer: str | None = None
    text_key: str = "text"
    eod: int | None = Field(None, ge=0)
    bos: Literal["auto", "always", "never"] = "auto"
    samples: int | None = Field(None, ge=1)  # of a function of an index


class CustomDataset:
    """A user's object with its missing attributes filled in."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.bytes_per_token: float = getattr(inner, "bytes_per_token", nan)
        reader = getattr(inner, "reader", inner)
        self.vocab_size: int | None = getattr(reader, "vocab_size", None)
        path = getattr(reader, "tokenizer_path", None)
        self.tokenizer_path: Path | None = Path(path) if path else None
        self.eod: int | None = getattr(reader, "eod", None)
        self.ends = Ends(() if self.eod is None else (self.eod,), getattr(reader, "bos", None))

    def __len__(self) -> int:
        return len(self.inner)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """The user's batch; raises UserError when it isn't a Batch of as many rows."""
        batch = self.inner.batch(indices)
        if not isinstance(batch, Batch) or len(batch) != len(indices):
            rows = f" of {len(batch)} rows" if isinstance(batch, Batch) else ""
            how = f"return a scalewright.data.batch.Batch of {len(indices)} rows"
            raise UserError(f"batch() gave a {type(batch).__name__}{rows}", "data", how)
        return batch


def open_custom(ref: PythonRef, split: str, seed: int) -> CustomDataset:
    """The user's dataset; raises UserError when the name isn't there or can't be called so."""
    function = import_object(ref.python)
    if _takes_index(function, ref):
        return _open_function(function, ref, split, seed)
    arguments, unused = _arguments(function, ref, split, seed)
    _check_call(ref, function, arguments)
    data = function(**arguments)
    if callable(getattr(data, "batch", None)) and hasattr(data, "__len__"):
        _check_call(ref, function, {**arguments, **unused})  # keys that such an object would never see
        return CustomDataset(data)
    chosen = _of_split(data, split, ref)
    if _is_indexed(chosen):
        if not len(chosen):
            raise UserError(f"{ref.python} gave no items for {split}", "data", "check what it reads")
        items: Items = Indexed(chosen.__getitem__, len(chosen), seed, split == "train")
    elif hasattr(chosen, "__iter__"):
        items = Streamed(lambda: _of_split(function(**arguments), split, ref), chosen)
    else:
        what = f"{ref.python} gave a {type(data).__name__}, which has no items and no batch(indices)"
        how = "return a dataset, something to iterate over, or an object with batch(indices) and len()"
        raise UserError(what, "data", how)
    keys = _item_keys(ref)
    if keys.samples is not None:
        how = "remove samples, or give the dataset fewer items"
        raise UserError("samples is the length of a function of an index, and this is a dataset", "data", how)
    return _rows(items, keys, split)


def _open_function(function: Callable[..., Any], ref: PythonRef, split: str, seed: int) -> CustomDataset:
    """A function of an index as a dataset: of `samples` items, or endless."""
    keys = _item_keys(ref)
    arguments, _ = _arguments(function, ref, split, seed)
    _check_call(ref, function, {**arguments, "index": 0})
    items = Indexed(lambda number: function(index=number, **arguments), keys.samples, seed, split == "train")
    return _rows(items, keys, split)


def _rows(items: Items, keys: ItemKeys, split: str) -> CustomDataset:
    reader = ItemReader.of(keys.tokenizer, keys.text_key, keys.eod, keys.bos)
    assert keys.seq_len is not None
    if isinstance(items, Indexed) and not keys.packing:
        return CustomDataset(IndexedRows(items, reader, keys.seq_len))
    masks = {"packing": keys.packing, "document_mask": keys.document_mask}
    return CustomDataset(SequentialRows(items, reader, keys.seq_len, **masks, once=split != "train"))


def _takes_index(function: Callable[..., Any], ref: PythonRef) -> bool:
    parameter = inspect.signature(function).parameters.get("index")
    missing = inspect.Parameter.empty
    return parameter is not None and parameter.default is missing and "index" not in ref.arguments


def _arguments(
    function: Callable[..., Any], ref: PythonRef, split: str, seed: int
) -> tuple[dict[str, object], dict[str, object]]:
    """The arguments for the name, and those of our own keys that it doesn't take."""
    accepted = inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    added = {"split": split, "seed": seed}
    arguments = ref.arguments | {key: value for key, value in added.items() if takes_all or key in accepted}
    rejected = set[str]() if takes_all else ItemKeys.model_fields.keys() - accepted.keys()
    unused = {key: value for key, value in arguments.items() if key in rejected}
    return {key: value for key, value in arguments.items() if key not in unused}, unused


def _check_call(ref: PythonRef, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        how = "give its arguments beside `python`"
        raise UserError(f"{ref.python} can't be called so: {error}", "data", how) from None


def _item_keys(ref: PythonRef) -> ItemKeys:
    arguments = {key: value for key, value in ref.arguments.items() if key in ItemKeys.model_fields}
    keys = ItemKeys.parse(arguments, "data")
    if keys.seq_len is None:
        how = "set seq_len beside python:, such as seq_len: 1024"
        raise UserError(f"{ref.python} gives items, and the rows have no length", "data", how)
    return keys


def _of_split(data: Any, split: str, ref: PythonRef) -> Any:
    """One split of a dictionary of them (Hugging Face's DatasetDict); anything else as it is."""
    if not isinstance(data, Mapping):
        return data
    names = ("train",) if split == "train" else VALID_NAMES
    for name in names:
        if name in data:
            return data[name]
    how = f"add one named {names[0]}, or return the dataset of the `split` that the function is called with"
    raise UserError(f"{ref.python} gave the splits {', '.join(map(str, data))}", "data", how)


def _is_indexed(data: Any) -> bool:
    """Whether items have numbers. torch's IterableDataset inherits a `__getitem__` that only raises."""
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__)
    return not iterable and hasattr(data, "__getitem__") and hasattr(data, "__len__")


class IndexedRows:
    """Rows of `seq_len` inputs, each of one item."""

    def __init__(self, items: Indexed, reader: ItemReader, seq_len: int) -> None:
        self.items, self.reader, self.seq_len = items, reader, seq_len

    def __len__(self) -> int:
        return self.items.length if self.items.length is not None else 2**62

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These rows; raises UserError for an item that is longer than a row."""
        shape = (len(indices), self.seq_len)
        tokens, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, index in enumerate(indices):
            epoch, ordinal = divmod(index, len(self))
            number = self.items.number(epoch, ordinal)
            source = f"data, item {number}"
            document = self.reader.document(self.items.get(number), source)
            count = max(len(document.tokens) - 1, 0)
            if count > self.seq_len:
                what = f"an item has {count + 1} tokens, and a row takes seq_len + 1 = {self.seq_len + 1}"
                how = "use packing: true, which goes on with it in the next row, or cut it in your dataset"
                raise UserError(what, source, how)
            tokens[row, :count], targets[row, :count] = document.tokens[:-1], document.labels[1:]
        positions = np.tile(np.arange(self.seq_len, dtype=np.int64), (len(indices), 1))
        return Batch(tokens, targets, positions, None, np.asarray(indices, dtype=np.int64))
