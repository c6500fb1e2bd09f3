"""From documents to rows of one length: which slices of which documents make row r of epoch e.

Packed: the epoch's documents in their shuffled order are one long ring of N tokens. Rows are cut from it
every `seq_len` tokens, from a start that changes with the epoch; each row also takes the next token, which
is its last target, so neighbours overlap by one and every token is a target exactly once an epoch:

    ring     d3 d3 d3 <eod> d0 d0 <eod> d1 d1 d1 d1 <eod> (d3 ...)
    row 0    └── inputs ─────┘+1
    row 1                    └── inputs ─────┘+1
    row 2                                    └── inputs …  the last row is padded

Unpacked: one document a row, a longer one cut into several rows (overlapping by one, too), a shorter one
padded. Nothing is dropped in either way.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scalewright.data.batch import IGNORED, Batch
from scalewright.data.sources import Permutation, mix
from scalewright.data.tokens import TokenStore, spread

Int64 = NDArray[np.int64]

MAX_UNITS = 1 << 21
"""Documents are shuffled one by one up to this many; beyond, in runs of neighbours, to bound memory."""

_STRIDE = 64  # unpacked: the rows of every 64th document are kept, those between are counted when needed


@dataclass(frozen=True)
class Segments:
    """Slices of documents that fill rows, in order: slice s goes to row `row[s]` (ascending)."""

    row: Int64
    start: Int64  # position in the token store
    length: Int64


class Rows(Protocol):
    """A way to make rows of `seq_len` inputs and one more token."""

    count: int  # rows in an epoch
    targets: int  # counted targets in an epoch, with documents masked from each other

    def segments(self, epoch: int, rows: Int64) -> Segments:
        """The slices that fill these rows of this epoch; at most seq_len + 1 tokens each."""
        ...


@dataclass(frozen=True)
class _Ring:
    """One epoch's order of units (documents, or runs of them), and where each starts on the ring."""

    order: Int64
    bounds: Int64  # units + 1
    shift: int


class PackedRows:
    """Documents end to end, cut into rows."""

    def __init__(self, store: TokenStore, seq_len: int, seed: int, shuffle: bool) -> None:
        self.store, self.seq_len, self.seed, self.shuffle = store, seq_len, seed, shuffle
        self.count = -(-store.tokens // seq_len)
        self.targets = store.tokens - store.documents
        self._run = -(-store.documents // MAX_UNITS)  # documents in a unit
        self._rings: OrderedDict[int, _Ring] = OrderedDict()

    def segments(self, epoch: int, rows: Int64) -> Segments:
        ring = self._ring(epoch)
        total, units = self.store.tokens, len(ring.order)
        start = ring.shift + rows * self.seq_len
        length = np.minimum(self.seq_len, total - rows * self.seq_len)
        stop = start + length + 1  # one more for the last target
        first, last = _unit_at(ring.bounds, start), _unit_at(ring.bounds, stop - 1)
        counts = last - first + 1
        row = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
        lap, unit = np.divmod(spread(first, counts), units)
        unit_start = ring.bounds[unit] + lap * total
        begin = np.maximum(start[row], unit_start)
        end = np.minimum(stop[row], ring.bounds[unit + 1] + lap * total)
        source = self.store.offsets[ring.order[unit] * self._run] + begin - unit_start
        segments = Segments(row, source, end - begin)
        return segments if self._run == 1 else _by_document(self.store.offsets, segments)

    def _ring(self, epoch: int) -> _Ring:
        if (ring := self._rings.get(epoch)) is None:
            ring = self._rings[epoch] = self._make_ring(epoch)
            if len(self._rings) > 2:  # a batch may lie across the end of an epoch
                self._rings.popitem(last=False)
        return ring

    def _make_ring(self, epoch: int) -> _Ring:
        firsts = np.asarray(self.store.offsets[: -1 : self._run])
        lengths = np.diff(firsts, append=self.store.offsets[-1])
        order, shift = np.arange(len(firsts), dtype=np.int64), 0
        if self.shuffle:
            order = Permutation(len(firsts), mix(self.seed, epoch, 1))(order)
            shift = mix(self.seed, epoch, 2) % self.store.tokens
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[order], dtype=np.int64)])
        return _Ring(order, bounds, shift)


def _unit_at(bounds: Int64, places: Int64) -> Int64:
    """The unit that holds each place of the ring; those of the second lap are units + unit."""
    total, units = int(bounds[-1]), len(bounds) - 1
    lap = places >= total
    units_at: Int64 = np.searchsorted(bounds, places - lap * total, side="right") - 1 + lap * units
    return units_at


def _by_document(offsets: Int64, segments: Segments) -> Segments:
    """The same slices, cut where a document ends inside one."""
    end = segments.start + segments.length
    first = np.searchsorted(offsets, segments.start, side="right") - 1
    last = np.searchsorted(offsets, end - 1, side="right") - 1
    counts = last - first + 1
    which, document = np.repeat(np.arange(len(counts)), counts), spread(first, counts)
    begin = np.maximum(segments.start[which], offsets[document])
    return Segments(segments.row[which], begin, np.minimum(end[which], offsets[document + 1]) - begin)


class DocumentRows:
    """One document a row; a document of more than seq_len + 1 tokens takes several."""

    def __init__(self, store: TokenStore, seq_len: int) -> None:
        self.store, self.seq_len = store, seq_len
        self.targets = store.tokens - store.documents
        totals = [np.zeros(1, np.int64)]
        step = _STRIDE << 14  # a million documents at a time
        for first in range(0, store.documents, step):
            rows = self._rows_of(np.arange(first, min(first + step, store.documents)))
            totals.append(np.add.reduceat(rows, np.arange(0, len(rows), _STRIDE)))
        self._bounds = np.cumsum(np.concatenate(totals), dtype=np.int64)  # rows before every 64th document
        self.count = int(self._bounds[-1])

    def segments(self, epoch: int, rows: Int64) -> Segments:
        group = np.searchsorted(self._bounds, rows, side="right") - 1
        documents = group[:, None] * _STRIDE + np.arange(_STRIDE)  # [B, 64]
        inside = documents < self.store.documents
        sizes = np.where(inside, self._rows_of(np.minimum(documents, self.store.documents - 1)), 0)
        ends = self._bounds[group][:, None] + np.cumsum(sizes, axis=1)
        in_group = (ends <= rows[:, None]).sum(axis=1)
        document = group * _STRIDE + in_group
        part = rows - (np.take_along_axis(ends - sizes, in_group[:, None], axis=1)[:, 0])
        start = self.store.offsets[document] + part * self.seq_len
        length = np.minimum(self.store.offsets[document + 1] - start, self.seq_len + 1)
        return Segments(np.arange(len(rows), dtype=np.int64), start, length)

    def _rows_of(self, documents: Int64) -> Int64:
        length = self.store.offsets[documents + 1] - self.store.offsets[documents]
        rows: Int64 = np.maximum(-(-(length - 1) // self.seq_len), 1)
        return rows


def fill(store: TokenStore, segments: Segments, ids: Int64, seq_len: int, document_mask: bool, pad: int) -> Batch:
    """Reads the slices into a row for each of these samples. With `document_mask`, a document's last token
    has no target and its successor's positions start again; without it, only padding is not counted. Padding
    is a document of its own.
    """
    rows = len(ids)
    flat = store.gather(segments.start, segments.length)
    filled = np.zeros(rows, np.int64)
    np.add.at(filled, segments.row, segments.length)
    full = bool((filled == seq_len + 1).all())
    if full:
        grid = flat.reshape(rows, seq_len + 1)
        targets = grid[:, 1:].copy()
    else:
        real = np.arange(seq_len + 1) < filled[:, None]
        grid = np.full((rows, seq_len + 1), pad, np.int64)
        grid[real] = flat
        targets = np.where(real[:, 1:], grid[:, 1:], IGNORED)
    tokens = grid[:, :-1].copy()
    if not document_mask:
        positions = np.tile(np.arange(seq_len, dtype=np.int64), (rows, 1))
        return Batch(tokens, targets, positions, None, ids)
    row, length = segments.row, segments.length
    if not full:  # one more segment in each short row: the padding
        short = np.flatnonzero(filled <= seq_len)
        after = np.searchsorted(row, short, side="right")
        row, length = np.insert(row, after, short), np.insert(length, after, seq_len + 1 - filled[short])
    ends = np.cumsum(length)
    last = np.append(row[1:] != row[:-1], True)  # the segment that ends its row
    inner = ends[~last] - 1 - row[~last] * (seq_len + 1)  # column of a document's last token
    targets[row[~last], inner] = IGNORED
    columns = length - last  # inputs leave out the row's last token
    number = np.arange(len(row)) - np.searchsorted(row, row)
    documents = np.repeat(number.astype(np.int32), columns).reshape(rows, seq_len)
    begins = np.cumsum(columns) - columns
    positions = (np.arange(rows * seq_len, dtype=np.int64) - np.repeat(begins, columns)).reshape(rows, seq_len)
    return Batch(tokens, targets, positions, documents, ids)
