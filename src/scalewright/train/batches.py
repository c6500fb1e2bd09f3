"""Which samples a rank trains on, and how they reach its device.

    step 3, global batch 8, dp 2, micro-batch 2:   samples 24 25 | 26 27 | 28 29 | 30 31
                                                   rank     0       1       0       1
                                                   micro    0       0       1       1

A step takes samples [consumed, consumed + global_batch), whatever the layout; only who reads which changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.data.batch import sample_ids_hash
from scalewright.data.dataset import Dataset
from scalewright.data.prefetch import Prefetcher
from scalewright.parallel.inputs import Micro, accepted_arguments, micro_batches
from scalewright.parallel.mesh import Mesh
from scalewright.spec.layout import Layout


def rank_samples(consumed: int, layout: Layout, batch_rank: int) -> list[int]:
    """The sample numbers of one rank in one step, micro-batch after micro-batch."""
    per_round = layout.micro_batch * layout.dp
    starts = (
        consumed + micro * per_round + batch_rank * layout.micro_batch for micro in range(layout.accumulation)
    )
    return [start + offset for start in starts for offset in range(layout.micro_batch)]


class StepBatches:
    """Every step's micro-batches for one rank, read ahead by a thread; an iterator, to be closed."""

    def __init__(
        self, dataset: Dataset, layout: Layout, mesh: Mesh, model: nn.Module, first: int, last: int
    ) -> None:
        """Steps `first` to `last` (from 1, both included)."""
        self.dataset, self.layout, self.device = dataset, layout, mesh.device
        self._accepts = accepted_arguments(model)
        rank = mesh.index("batch")
        places = (rank_samples((step - 1) * layout.batch, layout, rank) for step in range(first, last + 1))
        self._ahead = Prefetcher(dataset, places)

    def __iter__(self) -> Iterator[tuple[list[Micro], Tensor]]:
        """(micro-batches, this rank's counted tokens as a scalar on the device) of every step."""
        for batch in self._ahead:
            micros = micro_batches(batch, self.layout.micro_batch, self.device, self._accepts)
            yield micros, torch.tensor(float(batch.counted), device=self.device)

    def hash_of(self, step: int) -> str:
        """The hash of the step's sample ids, the same on every layout."""
        numbers = range((step - 1) * self.layout.batch, step * self.layout.batch)
        return sample_ids_hash(sample_ids(self.dataset, numbers))

    def close(self) -> None:
        """Stops the thread."""
        self._ahead.close()


def sample_ids(dataset: Dataset, numbers: range) -> NDArray[np.int64]:
    """The ids of samples by number; a user's dataset that names none has the numbers themselves."""
    find = getattr(dataset, "sample_ids", None)
    return np.asarray(find(numbers) if find else numbers, dtype=np.int64)
