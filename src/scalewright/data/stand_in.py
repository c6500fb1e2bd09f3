"""Data that stand in for a run's own: its tokens folded into a smaller vocabulary, or random ones.

    {python: scalewright.data.stand_in:Folded, source: {...}, vocab_size: 256, seq_len: 32}
    tokens 17 50256 300 ...  --modulo 256-->  17 80 44 ...      and rows cut to 32 tokens

    {python: scalewright.data.stand_in:RandomTokens, vocab_size: 256, seq_len: 32}

For comparing two ways to compute the same thing the tokens' meaning doesn't matter; documents, uncounted
targets and the order of samples do, and they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.batch import IGNORED, Batch
from scalewright.data.dataset import open_data
from scalewright.spec.ends import Ends
from scalewright.spec.run import DataSpec, PythonRef


class Folded:
    """A run's data (`source`: its `data` key) with token ids modulo `vocab_size`, in rows of `seq_len`."""

    bytes_per_token = nan
    tokenizer_path: Path | None = None

    def __init__(self, split: str, seed: int, source: dict[str, object], vocab_size: int | None, seq_len: int) -> None:
        rows = {**source, "seq_len": seq_len}
        spec = PythonRef.parse(source, "data") if "python" in source else DataSpec.parse(rows, "data")
        self._inner = open_data(spec, "valid" if split == "valid" else "train", seed)
        self.vocab_size, self.seq_len, self.eod, self.ends = vocab_size, seq_len, None, Ends()

    def __len__(self) -> int:
        return len(self._inner)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples, folded and cut."""
        batch = self._inner.batch(indices)
        documents = None if batch.documents is None else self._cut(batch.documents)
        tokens, targets = self._cut(batch.tokens), self._cut(batch.targets)
        if self.vocab_size is not None:
            tokens = tokens % self.vocab_size
            targets = np.where(targets == IGNORED, IGNORED, targets % self.vocab_size)
        return Batch(tokens, targets, self._cut(batch.positions), documents, batch.sample_ids)

    def _cut(self, rows: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(rows[:, : self.seq_len])


class RandomTokens:
    """Rows of random tokens, in documents of random lengths; row i is a function of (seed, i)."""

    bytes_per_token = nan
    tokenizer_path: Path | None = None

    def __init__(self, split: str, seed: int, vocab_size: int, seq_len: int, document_mask: bool = True) -> None:
        self.seed, self.vocab_size, self.seq_len = seed, vocab_size, seq_len
        self.document_mask, self.eod, self.ends = document_mask, None, Ends()

    def __len__(self) -> int:
        return 1 << 20

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples."""
        ids = np.asarray(indices, dtype=np.int64)
        randoms = [np.random.default_rng([self.seed, int(number)]) for number in ids]
        rows = np.stack([r.integers(0, self.vocab_size, self.seq_len + 1) for r in randoms]).astype(np.int64)
        tokens, targets = rows[:, :-1].copy(), rows[:, 1:].copy()
        places = np.tile(np.arange(self.seq_len, dtype=np.int64), (len(ids), 1))
        if not self.document_mask:
            return Batch(tokens, targets, places, None, ids)
        begins = np.stack([r.random(self.seq_len) < 3.0 / self.seq_len for r in randoms])
        begins[:, 0] = True
        targets[:, :-1][begins[:, 1:]] = IGNORED  # a document's first token is no target
        documents = np.cumsum(begins, axis=1, dtype=np.int32) - 1
        starts = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        return Batch(tokens, targets, places - starts, documents, ids)
