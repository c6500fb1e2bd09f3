"""Rows from a user's items, read one after the other: packed, or a document a row.

    items       d0 d0 d0 | d1 d1 | d2 d2 d2 d2 d2 | ...   n tokens are n-1 (input, target) pairs
    row 0       └ d0 ┘ └d1┘ └ d2                              `seq_len` pairs; the rest goes on in row 1
    unpacked    └ d0 ┘ pad                                    one document a row, a long one over several

Row i is sample i. A rank reads on to it and skips the rows of others: every data-parallel rank reads all
items, so that samples are the same on any layout. A row's start (its number, and the item and the pair where
it begins) is small; a run that resumes reads on from the last one that was saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scalewright.data.batch import IGNORED, Batch
from scalewright.data.items import Document, Int64, ItemReader
from scalewright.data.sources import Items
from scalewright.spec.errors import UserError

KEPT_STARTS = 64  # the last batches whose beginnings are remembered: more than are read ahead


@dataclass(frozen=True)
class RowStart:
    """Where a row begins."""

    row: int = 0
    epoch: int = 0
    ordinal: int = 0  # of the item within the epoch
    offset: int = 0  # its pairs that earlier rows have taken
    carry: int | None = None  # without a document mask: the token before the item
    state: Any = None  # the stream's own, before the item


class Pairs(NamedTuple):
    """Inputs and targets of one document that no row has taken yet."""

    inputs: Int64
    targets: Int64
    positions: Int64


class SequentialRows:
    """Rows of `seq_len` pairs, in the order of the items."""

    def __init__(
        self, items: Items, reader: ItemReader, seq_len: int, *, packing: bool, document_mask: bool, once: bool
    ) -> None:
        """`once`: after the last item rows are empty (validation); else the next epoch begins."""
        self.items, self.reader, self.seq_len = items, reader, seq_len
        self.packing, self.document_mask, self.once = packing, document_mask, once
        self._row_starts: deque[RowStart] = deque(maxlen=KEPT_STARTS)
        self.seek(None)

    def __len__(self) -> int:
        return 2**62  # the number of rows is unknown until all items have been read

    def seek(self, position: Mapping[str, Any] | None) -> None:
        """Goes to a result of `position`; null: the beginning."""
        self._row_start = RowStart(**position) if position else RowStart()
        self._row_starts.clear()
        self._stream: Iterator[Any] | None = None
        self._pending: Pairs | None = None
        self._last_token = self._row_start.carry
        self._ended = self._epoch_has_pairs = False

    def position(self, row: int) -> dict[str, object] | None:
        """The last remembered place at or before a row, as plain data; null: none."""
        before = [past for past in list(self._row_starts) if past.row <= row]
        return asdict(before[-1]) if before else None

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These rows; reads from the beginning when one lies before the place that has been reached."""
        rows: list[tuple[Int64, ...]] = []
        if self._row_start.row > indices[0]:
            self.seek(None)
        self._row_starts.append(self._row_start)
        for index in indices:
            while self._row_start.row < index:
                self._row()
            rows.append(self._row())
        inputs, targets, positions, documents = (np.stack(column) for column in zip(*rows, strict=True))
        masks = documents.astype(np.int32) if self.document_mask and self.packing else None
        return Batch(inputs, targets, positions, masks, np.asarray(indices, dtype=np.int64))

    def _row(self) -> tuple[Int64, ...]:
        """The next row's inputs, targets, positions and documents, [seq_len] each."""
        length = self.seq_len
        inputs, positions = np.zeros(length, np.int64), np.arange(length, dtype=np.int64)
        targets, documents = np.full(length, IGNORED), np.zeros(length, np.int64)
        filled, number = 0, 0
        while filled < length and not self._ended:
            if self._pending is None and not self._next():
                continue
            assert self._pending is not None
            count = min(length - filled, len(self._pending.inputs))
            span = slice(filled, filled + count)
            inputs[span], targets[span] = self._pending.inputs[:count], self._pending.targets[:count]
            if self.document_mask:
                positions[span] = self._pending.positions[:count] - self._pending.positions[0]
            documents[span] = number
            self._take(count)
            filled, number = filled + count, number + 1
            if not self.packing:
                break
        documents[filled:] = max(number - 1, 0)
        self._row_start = replace(self._row_start, row=self._row_start.row + 1)
        return inputs, targets, positions, documents

    def _take(self, count: int) -> None:
        """Moves past pairs of the open document; past the last of them, to the next item."""
        assert self._pending is not None
        start = self._row_start
        if count < len(self._pending.inputs):
            self._pending = Pairs(*(part[count:] for part in self._pending))
            self._row_start = replace(start, offset=start.offset + count)
        else:
            self._finish()

    def _finish(self) -> None:
        """The open item is used up; without a document mask the next one follows from its last token."""
        start = self._row_start
        carry = None if self.document_mask else self._last_token
        self._pending = None
        self._row_start = RowStart(start.row, start.epoch, start.ordinal + 1, 0, carry, self.items.state())

    def _next(self) -> bool:
        """Opens the next item; False when it has no pairs, or the data have ended."""
        start = self._row_start
        if self._stream is None:
            self._stream = self.items.open(start.epoch, start.ordinal, start.state)
            self._epoch_has_pairs = start.ordinal > 0  # the items before had some
        try:
            item = next(self._stream)
        except StopIteration:
            self._end_of_epoch()
            return False
        source = f"data, item {start.ordinal} of epoch {start.epoch}"
        pairs = self._pairs(self.reader.document(item, source))
        self._pending = Pairs(*(part[start.offset :] for part in pairs))
        if len(self._pending.inputs):
            self._epoch_has_pairs = True
            return True
        self._finish()
        return False

    def _end_of_epoch(self) -> None:
        start = self._row_start
        if not self._epoch_has_pairs:
            raise UserError("the data gave no item of two tokens or more", "data", "check what they yield")
        self._stream = None
        if self.once:
            self._ended = True
        else:
            self._row_start = RowStart(start.row, start.epoch + 1, 0, 0, start.carry)

    def _pairs(self, document: Document) -> Pairs:
        """A document's inputs and targets; without a document mask the last token before it is one, too."""
        tokens, labels = document
        if len(tokens):
            self._last_token = int(tokens[-1])
        if not self.document_mask and self._row_start.carry is not None and self.packing:
            tokens = np.append(np.int64(self._row_start.carry), tokens)
            labels = np.append(np.int64(IGNORED), labels)
        return Pairs(tokens[:-1], labels[1:], np.arange(max(len(tokens) - 1, 0), dtype=np.int64))
