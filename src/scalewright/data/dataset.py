"""Batches by number: sample i is a pure function of (data, seed, i), on any rank and in any order.

    i ──mixture──► source k, its j-th sample ──► epoch j / rows, row order[j mod rows] ──packing──► Batch

So a step takes samples [consumed, consumed + global_batch), any rank computes its own part of them, and the
place to resume from is one number.

Data have a fingerprint, apart from their path: a moved folder keeps it, other tokens change it.

    prepared shards       hash of the checksums in their metadata.json      no token is read
    .npy, .bin, Megatron  hash of sizes, of some documents' offsets, of 64 KiB at either end of a file

Cheap for terabytes, and not proof against somebody who changes tokens in the middle of a file on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from scalewright.data.batch import Batch
from scalewright.data.custom import open_custom
from scalewright.data.mixture import LARGEST_PERIOD, Positions, Segment, SourceOf
from scalewright.data.packing import DocumentRows, PackedRows, Rows, fill
from scalewright.data.readers import open_tokens
from scalewright.data.sources import Permutation, mix
from scalewright.data.tokens import TokenStore, Vocabulary
from scalewright.spec.ends import Ends
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec, PythonRef

Int64 = NDArray[np.int64]
_SOURCE_SHIFT = 56  # a sample id: the source's number in the top byte, below the sample's in the source


class Dataset(Protocol):
    """Random access to samples: the trainer's interface to any data."""

    bytes_per_token: float  # UTF-8 bytes of text behind a counted target, for bits per byte; NaN when unknown
    vocab_size: int | None
    tokenizer_path: Path | None
    ends: Ends  # how its documents begin and end
    eod: int | None

    def __len__(self) -> int:
        """Distinct samples in one epoch."""
        ...

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples, in this order; any index from 0 on is valid."""
        ...


class _Source:
    def __init__(self, number: int, store: TokenStore, rows: Rows, seed: int, shuffle: bool) -> None:
        self.number, self.store, self.rows, self.shuffle = number, store, rows, shuffle
        self._seed = seed
        self.pad = store.eod if store.eod is not None else 0

    def places(self, ordinals: Int64) -> tuple[Int64, Int64]:
        epochs, rows = np.divmod(ordinals, self.rows.count)
        if self.shuffle:
            for epoch in np.unique(epochs):
                chosen = epochs == epoch
                rows[chosen] = Permutation(self.rows.count, mix(self._seed, int(epoch), 3))(rows[chosen])
        return epochs, rows


class TokenDataset:
    """Rows from one or several token stores, shuffled by `seed` ("train") or as they lie ("valid")."""

    stores: Sequence[TokenStore]
    damage: UserError | None  # found meanwhile (data/check.py), raised in the place of the next batch

    def __init__(
        self, stores: Sequence[TokenStore], seq_len: int, seed: int = 0, weights: Sequence[float] | None = None,
        packing: bool = True, document_mask: bool = True, shuffle: bool = True,
        positions: tuple[Positions, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """`positions`: of a run that goes on, with its weights, and the stores' numbers there (default: all
        stores at their beginning, mixed by `weights`)."""
        self.seq_len, self.document_mask = seq_len, document_mask
        self._sources: list[_Source] = []
        numbers = range(len(stores)) if positions is None else positions[1]
        for number, store in zip(numbers, stores, strict=True):
            key = mix(seed, number)
            rows: Rows = PackedRows(store, seq_len, key, shuffle) if packing else DocumentRows(store, seq_len)
            self._sources.append(_Source(number, store, rows, key, shuffle))
        if positions is None:
            shares = weights if weights is not None else _by_size(self._sources)
            positions = Positions(("",) * len(stores), (Segment(0, dict(enumerate(shares))),)), numbers
        self.numbers = tuple(numbers)  # of the stores
        self.positions = positions[0]
        self._mixture = SourceOf(self.positions)
        self.eod: int | None = _same(store.eod for store in stores)
        eods = dict.fromkeys(store.eod for store in stores if store.eod is not None)
        self.ends = Ends(tuple(eods), _same(store.bos for store in stores))
        self.vocab_size: int | None = _same(store.vocab_size for store in stores)
        self.tokenizer_path: Path | None = stores[0].tokenizer_path
        self.stores, self.damage = tuple(stores), None
        self._masked = document_mask or not packing  # then a document's first token is no target
        self.bytes_per_token = self._bytes_per_token()

    def __len__(self) -> int:
        return sum(source.rows.count for source in self._sources)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples; int64 [len(indices), seq_len]. Raises UserError when a token file is damaged."""
        if self.damage is not None:
            raise self.damage
        which, epochs, rows, ids = self._places(indices)
        groups: list[tuple[Int64, Batch]] = []  # of one source and one epoch: where in the batch, and what
        for source in self._sources:
            for epoch in np.unique(epochs[which == source.number]):
                chosen = np.flatnonzero((which == source.number) & (epochs == epoch))
                segments = source.rows.segments(int(epoch), rows[chosen])
                filled = fill(source.store, segments, ids[chosen], self.seq_len, self.document_mask, source.pad)
                groups.append((chosen, filled))
        return groups[0][1] if len(groups) == 1 else _scatter(groups, ids, self.seq_len)

    def limit(self, vocab_size: int) -> None:
        """From here on every id is compared with a model's vocabulary, too; raises UserError."""
        for source in self._sources:
            store = source.store
            if store.vocabulary is not None and store.vocabulary.size <= vocab_size:
                continue
            fix = "use a larger vocab_size, or the tokens that the model was made for"
            store.vocabulary = Vocabulary(vocab_size, "the model's vocab_size", fix)
            if source.pad >= vocab_size:
                raise UserError(f"eod {source.pad} is not below the model's vocab_size {vocab_size}", "data", fix)

    def sample_ids(self, indices: Sequence[int] | range) -> Int64:
        """The ids of these samples, without reading their tokens; int64 [len(indices)], all different."""
        return self._places(indices)[3]

    def given(self, samples: int) -> list[int]:
        """How many of the first `samples` samples came from each source, by the sources' numbers."""
        return self._mixture.given(samples)

    def _places(self, indices: Sequence[int] | range) -> tuple[Int64, Int64, Int64, Int64]:
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.ndim != 1 or not len(numbers) or numbers.min() < 0:
            raise ValueError(f"a batch needs one or more indices from 0 on, got {indices!r}")
        which, ordinals = self._mixture(numbers)
        epochs, rows, ids = np.empty_like(numbers), np.empty_like(numbers), np.empty_like(numbers)
        for source in self._sources:
            chosen = np.flatnonzero(which == source.number)
            epochs[chosen], rows[chosen] = source.places(ordinals[chosen])
            ids[chosen] = (source.number << _SOURCE_SHIFT) + epochs[chosen] * source.rows.count + rows[chosen]
        return which, epochs, rows, ids

    @property
    def targets(self) -> int:
        """Tokens that a whole pass over the data counts a loss for."""
        return sum(self._targets(source) for source in self._sources)

    def _targets(self, source: _Source) -> int:
        return source.rows.targets if self._masked else source.store.tokens

    def _bytes_per_token(self) -> float:
        """Text bytes behind a counted target, by the sources' shares; NaN when one lacks its text's size."""
        total, shares = 0.0, self._mixture.shares
        for source in self._sources:
            text_bytes = nan if source.store.text_bytes is None else source.store.text_bytes
            total += shares[source.number] * text_bytes / max(self._targets(source), 1)
        return total


def _scatter(groups: list[tuple[Int64, Batch]], ids: Int64, seq_len: int) -> Batch:
    tokens, targets, positions = (np.empty((len(ids), seq_len), np.int64) for _ in range(3))
    documents = None if groups[0][1].documents is None else np.empty((len(ids), seq_len), np.int32)
    for index, filled in groups:
        tokens[index], targets[index], positions[index] = filled.tokens, filled.targets, filled.positions
        if documents is not None and filled.documents is not None:
            documents[index] = filled.documents
    return Batch(tokens, targets, positions, documents, ids)


def _by_size(sources: list[_Source]) -> list[float | int]:
    """Weights that meet every row of every source exactly once in an epoch (up to a million rows in all)."""
    counts = [source.rows.count for source in sources]
    return list(counts) if sum(counts) <= LARGEST_PERIOD else [count / sum(counts) for count in counts]


def _same(values: Any) -> Any:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def open_data(
    spec: DataSpec | PythonRef, split: Literal["train", "valid"], seed: int = 0, before: Positions | None = None,
    samples: int = 0,
) -> Dataset:  # fmt: skip
    """The data of one split: shuffled by `seed` for "train", in stored order for "valid".

    Training sources are mixed by weight; for a run that goes on after `samples` samples, each from its place in
    `before`. Validation sources are interleaved by size, so that `len()` samples hold each row once. Raises UserError
    when a path holds no tokens, when they are damaged, or when sources disagree on the tokenizer.
    """
    if isinstance(spec, PythonRef):
        return open_custom(spec, split, seed)
    sources = spec.train if split == "train" else spec.valid
    if not sources:
        how = "add a path, such as the folder that `prepare` made"
        raise UserError(f"no {split} data is named", f"data.{split}", how)
    if len(sources) > 127:
        raise UserError(f"{len(sources)} sources in a mixture", f"data.{split}", "join some: 127 are the most")
    stores = [open_tokens(source.path, split, source.format, source.eod) for source in sources]
    pairs = [(store, source.path) for store, source in zip(stores, sources, strict=True)]
    by_tokenizer = {store.tokenizer_checksum: path for store, path in pairs if store.tokenizer_checksum}
    if len(by_tokenizer) > 1:
        first, second = list(by_tokenizer.values())[:2]
        how = "prepare both with the same --tokenizer"
        raise UserError(f"{first} and {second} were made with different tokenizers", f"data.{split}", how)
    begins = {store.bos: path for store, path in pairs if store.bos is not None}
    if len(begins) > 1:
        (ids, path), (other_ids, other) = list(begins.items())[:2]
        what = f"documents of {path} begin with the tokens {list(ids)}, those of {other} with {list(other_ids)}"
        raise UserError(what, f"data.{split}", "prepare both with the same --bos")
    positions = None
    if split == "train":
        identities = [store_identity(store) for store in stores]
        weights = [source.weight for source in sources]
        positions = (before or Positions((), ())).then(samples if before else 0, identities, weights)
        if len(positions[0].sources) > 127:
            how = "127 are the most: go on with a run of its own, from the weights alone (init:)"
            raise UserError(f"{len(positions[0].sources)} sources in all that the run has had", "data.train", how)
    shuffle = split == "train"
    return TokenDataset(stores, spec.seq_len, seed, None, spec.packing, spec.document_mask, shuffle, positions)


_SAMPLE = 1 << 16  # bytes at a file's beginning and end


def store_identity(store: TokenStore) -> str:
    """The fingerprint of one split of tokens: 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    documents = store.offsets[:: max(1, store.documents // 1024)]  # at most about a thousand, evenly
    digest.update(f"{store.tokens} {store.documents} {store.eod}".encode())
    digest.update(np.ascontiguousarray(documents, dtype="<i8").tobytes())
    if store.index is not None:
        digest.update(" ".join(file.sha256 for file in (*store.files, store.index)).encode())
    else:
        for file in store.files:
            digest.update(f"{file.dtype.str} {file.count}".encode())
            size = file.count * file.dtype.itemsize
            with open(file.path, "rb") as opened:
                for begin in (0, max(0, size - _SAMPLE)):
                    opened.seek(file.start + begin)
                    digest.update(opened.read(min(size, _SAMPLE)))
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """The fingerprint of a small file such as a tokenizer; of a missing one, "missing"."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"
