"""A training step's data: tokens, their targets, and the document of each.

tokens     the  cat  sat  <eod>  a    dog          one row, two documents packed
targets    cat  sat  <eod> -100  dog  ran          -100: not counted (here: the next document's first token)
positions   0    1    2     3    0     1
documents   0    0    0     0    1     1
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
"""The target that no loss counts (the default `ignore_index` of cross-entropy in PyTorch)."""


@dataclass(frozen=True)
class Batch:
    """B rows of T tokens. `documents` is None when attention is plain causal: then no mask is needed."""

    tokens: NDArray[np.int64]  # [B, T]
    targets: NDArray[np.int64]  # [B, T], IGNORED where nothing is counted
    positions: NDArray[np.int64]  # [B, T], from 0 in each document (or over the row when documents is None)
    documents: NDArray[np.int32] | None  # [B, T], number of the document within the row, from 0
    sample_ids: NDArray[np.int64]  # [B]

    def __len__(self) -> int:
        return len(self.tokens)


def sample_ids_hash(ids: Sequence[int] | NDArray[np.int64]) -> str:
    """16 hexadecimal digits that name a step's samples; `ids` of the whole step, by sample index.

    Every layout of a run takes the same samples in the same step, so the hash is the same for any ranks.
    """
    array = np.ascontiguousarray(ids, dtype="<i8")
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
