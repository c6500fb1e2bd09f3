"""Rows from a user's items by number: one document a row, row i at once, on any rank.

    i -> epoch i / n, item order[i mod n] -> document -> a row, padded

Only without packing: which items a packed row holds depends on the lengths of all items before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalewright.data.batch import IGNORED, Batch
from scalewright.data.items import ItemReader
from scalewright.data.sources import Indexed
from scalewright.spec.errors import UserError


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
                raise UserError(
                    f"an item has {count + 1} tokens, and a row takes seq_len + 1 = {self.seq_len + 1}",
                    source,
                    "use packing: true, which goes on with it in the next row, or cut it in your dataset",
                )
            tokens[row, :count], targets[row, :count] = document.tokens[:-1], document.labels[1:]
        positions = np.tile(np.arange(self.seq_len, dtype=np.int64), (len(indices), 1))
        return Batch(tokens, targets, positions, None, np.asarray(indices, dtype=np.int64))
