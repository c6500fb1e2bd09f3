"""Which tokens of every row a rank of context parallelism has: zigzag (ring, allgather) or in order.

    ring, allgather    2 cp chunks, an early one and a late one for each rank     0 1 2 3 3 2 1 0    (cp 4)
    ulysses            cp chunks in order                                         0 1 2 3

Under the causal mask a token's work grows with its place in the row: of 2 cp chunks, r and 2 cp - 1 - r
together are as much work for every rank (Dubey et al. 2024, arXiv 2407.21783 §3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def chunks(kind: str, ranks: int) -> int:
    """How many equal parts a row is cut into."""
    return 2 * ranks if kind != "ulysses" and ranks > 1 else ranks


@dataclass(frozen=True)
class SequenceCut:
    """A rank's tokens of each row; `kind` is a layout's cp_kind."""

    kind: str
    ranks: int
    rank: int

    def tokens(self, length: int, rank: int | None = None) -> NDArray[np.int64]:
        """Their indices within a row of `length`, ascending; those of another rank, where one is given.

        >>> SequenceCut("ring", ranks=2, rank=0).tokens(8)
        array([0, 1, 6, 7])
        """
        number, count = self.rank if rank is None else rank, chunks(self.kind, self.ranks)
        size = length // count
        numbers = (number, count - 1 - number) if count > self.ranks else (number,)
        return np.concatenate([np.arange(chunk * size, (chunk + 1) * size) for chunk in numbers])
