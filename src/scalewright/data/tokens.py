"""Token files as one long array that is never loaded: the store behind every dataset.

    files        tokens-00000.bin      tokens-00001.bin           memory-mapped, opened when first touched
                 ├───────────────────┤ ├──────────────────┤
    positions    0 ...............  s₁ s₁ ...............  s₂     one numbering over all files
    offsets      0    o₁       o₂   ...                           where each document starts, and the end

A document never crosses a file, so a piece of a document is one contiguous slice of one file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.spec.errors import UserError

_OPEN_FILES = 256  # a mapping holds a file descriptor; 1024 is the usual limit of a process


@dataclass(frozen=True)
class TokenFile:
    """One file of tokens: `count` numbers of `dtype` from byte `start` on; checksums if metadata has them."""

    path: Path
    dtype: np.dtype[np.generic]
    count: int
    start: int = 0
    sha256: str = ""
    blocks: str = ""  # CRC-32 of every MiB, 8 hexadecimal digits each

    def map(self) -> NDArray[np.integer]:
        """The tokens, memory-mapped; raises UserError when the file is shorter than `count` numbers."""
        try:
            if self.count == 0:
                return np.empty(0, dtype=self.dtype)
            mapped = np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.start, shape=(self.count,))
        except FileNotFoundError:
            raise UserError("a token file is missing", str(self.path), "run `scalewright prepare` again") from None
        except (OSError, ValueError) as error:
            how = "run `scalewright prepare` again"
            raise UserError(f"cannot map a token file: {error}", str(self.path), how) from None
        return mapped.view(np.ndarray)


@dataclass(frozen=True)
class Vocabulary:
    """The ids that tokens may have: 0 to size - 1, since `name` is `size`."""

    size: int
    name: str
    fix: str

    def check(self, tokens: NDArray[np.integer], place: Callable[[int], tuple[TokenFile, int]]) -> None:
        """Raises UserError for the first id outside; `place` returns its file, and its number in there."""
        if not len(tokens) or (tokens.max() < self.size and tokens.min() >= 0):
            return
        index = int(np.argmax((tokens >= self.size) | (tokens < 0)))
        file, number = place(index)
        what = f"the data has token {tokens[index]}, but {self.name} is {self.size}"
        raise UserError(what, f"{file.path}, byte {file.start + number * file.dtype.itemsize}", self.fix)


@dataclass
class TokenStore:
    """Many token files under one numbering. `offsets` (int64, documents + 1) may be memory-mapped itself."""

    files: tuple[TokenFile, ...]
    offsets: NDArray[np.int64]
    eod: int | None = None
    vocab_size: int | None = None
    tokenizer_path: Path | None = None
    tokenizer_checksum: str | None = None
    text_bytes: int | None = None  # UTF-8 bytes of the text behind the tokens; None when unknown
    index: TokenFile | None = None  # the file of `offsets`, where metadata has its checksums
    vocabulary: Vocabulary | None = None  # that every id read is compared with
    checked: bool = False  # every byte, when it was opened
    bos: tuple[int, ...] | None = None  # the ids that begin every document; None: not recorded
    _starts: NDArray[np.int64] = field(init=False, repr=False)
    _mapped: OrderedDict[int, NDArray[np.integer]] = field(init=False, repr=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        counts = np.array([file.count for file in self.files], dtype=np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        assert self.offsets[0] == 0, "documents start at token 0"
        assert int(self.offsets[-1]) == int(self._starts[-1]), "documents end where the tokens end"

    @property
    def tokens(self) -> int:
        """The number of tokens in all files."""
        return int(self._starts[-1])

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1

    def gather(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens of many slices, end to end: int64[sum(lengths)]. No slice may cross a document's end."""
        which = np.searchsorted(self._starts, starts, side="right") - 1
        if len(starts) and (which == which[0]).all():
            first = int(which[0])
            out = self._file(first)[spread(starts - self._starts[first], lengths)].astype(np.int64)
        else:
            out = np.empty(int(lengths.sum()), dtype=np.int64)
            places = np.cumsum(lengths) - lengths
            for number in np.unique(which):
                in_file = np.flatnonzero(which == number)
                slices = spread(starts[in_file] - self._starts[number], lengths[in_file])
                out[spread(places[in_file], lengths[in_file])] = self._file(int(number))[slices]
        if self.vocabulary is not None:
            self.vocabulary.check(out, lambda index: self._place(spread(starts, lengths)[index]))
        return out

    def _place(self, token: np.int64) -> tuple[TokenFile, int]:
        which = int(np.searchsorted(self._starts, token, side="right")) - 1
        return self.files[which], int(token - self._starts[which])

    def _file(self, number: int) -> NDArray[np.integer]:
        if (mapped := self._mapped.get(number)) is None:
            mapped = self._mapped[number] = self.files[number].map()
            if len(self._mapped) > _OPEN_FILES:
                self._mapped.popitem(last=False)
        return mapped


def spread(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every index of many slices, end to end.

    >>> spread(np.array([10, 3]), np.array([2, 3]))
    array([10, 11,  3,  4,  5])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
