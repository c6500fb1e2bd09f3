"""Which samples a rank trains on, and how they reach its device.

    step 3, global batch 8, dp 2, micro-batch 2:   samples 24 25 | 26 27 | 28 29 | 30 31
                                                   rank     0       1       0       1
                                                   micro    0       0       1       1

A step takes the next global_batch samples, whatever the layout; only who reads which changes. An island (DiLoCo) takes
its share of them in a row, however it is split within. Samples that are left out (`train.guard`) are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.data.batch import IGNORED, Batch, sample_ids_hash
from scalewright.data.dataset import Dataset, TokenDataset
from scalewright.data.items import outside_vocabulary
from scalewright.data.mixture import LeftOut
from scalewright.data.prefetch import Prefetcher
from scalewright.parallel.inputs import Micro, micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout


@dataclass(frozen=True)
class DataPosition:
    """Where a run stands in its data: after `step` updates it has taken `tokens` tokens, and passed `samples` samples:
    those left out are among them. A step goes on from there, also with another batch or sequence length."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)

    def after(self, step: int, batch: int, seq_len: int) -> DataPosition:
        """The place after a later step, when every step from here on takes `batch` samples."""
        taken = (step - self.step) * batch
        samples = self.left_out.after(self.samples, taken)
        return replace(self, step=step, samples=samples, tokens=self.tokens + taken * seq_len)

    def taken(self, step: int, batch: int) -> NDArray[np.int64]:
        """The samples of a later step, when every step from here on takes `batch`; int64 [batch]."""
        before = (step - 1 - self.step) * batch
        return self.left_out.numbers(self.samples, range(before, before + batch))


def rank_samples(samples: NDArray[np.int64], layout: Layout, batch_rank: int, islands: int = 1) -> list[int]:
    """Those of a step's samples that one rank takes, micro-batch after micro-batch."""
    ranks = layout.dp // islands  # of an island
    island, rank = divmod(batch_rank, ranks)
    rounds = samples.reshape(islands, layout.accumulation, ranks, layout.micro_batch)[island]
    return [int(sample) for sample in rounds[:, rank].ravel()]


class StepBatches:
    """Every step's micro-batches for one rank, read ahead by a thread; an iterator, to be closed."""

    def __init__(
        self, dataset: Dataset, layout: Layout, mesh: Mesh, model: nn.Module, place: DataPosition, last: int
    ) -> None:
        """The steps after `place`, up to `last`."""
        self.dataset, self.layout, self.device, self.place = dataset, layout, mesh.device, place
        self._wanted = wanted_by(model, trains=True)
        rank = mesh.index("batch")
        islands = mesh.size("dp_replicate") if mesh.grid.islands else 1
        steps = map(self.samples_of, range(place.step + 1, last + 1))
        self._ahead = Prefetcher(dataset, (rank_samples(samples, layout, rank, islands) for samples in steps))

    def __iter__(self) -> Iterator[tuple[list[Micro], Tensor]]:
        """(micro-batches, this rank's counted tokens as a scalar on the device) of every step."""
        for batch in self._ahead:
            micros = micro_batches(batch, self.layout.micro_batch, self.device, self._wanted)
            counted = np.count_nonzero(self._wanted.of_row(batch.targets) != IGNORED)
            # a fill kernel: copying a number to a GPU would wait for all that was launched before
            yield micros, torch.full((), int(counted), dtype=torch.int64, device=self.device)

    def hash_of(self, step: int) -> str:
        """The hash of the step's sample ids, the same on every layout."""
        return sample_ids_hash(sample_ids(self.dataset, self.samples_of(step)))

    def samples_of(self, step: int) -> NDArray[np.int64]:
        """The numbers of a step's samples, of all ranks; int64 [global_batch]."""
        return self.place.taken(step, self.layout.global_batch)

    def close(self) -> None:
        """Stops the thread."""
        self._ahead.close()


class _InVocabulary:
    """A dataset without a declared vocabulary, with a look at every batch: a token that the embedding has no
    row for would end the process, on a GPU with an error that names neither."""

    def __init__(self, inner: Dataset, vocab_size: int) -> None:
        self.inner, self.limit = inner, vocab_size
        self.vocab_size: int | None = vocab_size
        self.bytes_per_token, self.eod, self.ends = inner.bytes_per_token, inner.eod, inner.ends
        self.tokenizer_path = inner.tokenizer_path
        self.sample_ids = lambda numbers: sample_ids(inner, numbers)

    def __len__(self) -> int:
        return len(self.inner)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples; raises UserError for a token or a target outside the model's vocabulary."""
        batch = self.inner.batch(indices)
        largest = max(int(batch.tokens.max()), int(batch.targets.max()))
        if largest >= self.limit or batch.tokens.min() < 0:
            shown = largest if largest >= self.limit else int(batch.tokens.min())
            how = f"use vocab_size {largest + 1} or more, or the tokens that the model was made for"
            raise UserError(f"the data has token {shown}, but the model's vocab_size is {self.limit}", "data", how)
        if (wrong := batch.targets[outside_vocabulary(batch.targets, self.limit)]).size:
            how = f"use {IGNORED} for targets that aren't counted"
            raise UserError(f"the data has target {wrong[0]}, and the vocabulary begins at 0", "data", how)
        return batch


def reading_place(dataset: Dataset, samples: int) -> dict[str, object]:
    """Where a dataset that is read in order stands after so many samples, for `state.json`; else nothing."""
    position = getattr(innermost(dataset), "position", None)
    place = position(samples) if position else None
    return {"reading": place} if place else {}


def go_to_place(dataset: Dataset, state: Mapping[str, Any]) -> None:
    """Lets a dataset that is read in order go on from where a checkpoint's `state.json` left it."""
    seek = getattr(innermost(dataset), "seek", None)
    if seek and state.get("reading"):
        seek(state["reading"])


def innermost(dataset: Any) -> Any:
    """The object that makes the rows, without what is laid around it."""
    while hasattr(dataset, "inner"):
        dataset = dataset.inner
    return dataset


def in_vocabulary(dataset: Dataset, vocab_size: int | None) -> Dataset:
    """The dataset; its tokens are checked where it isn't known that they fit the model. Raises UserError."""
    if vocab_size is not None and isinstance(dataset, TokenDataset):
        dataset.limit(vocab_size)
        return dataset
    if vocab_size is None or dataset.vocab_size is not None:
        return dataset
    return _InVocabulary(dataset, vocab_size)


def sample_ids(dataset: Dataset, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of samples by number; a user's dataset that names none has the numbers themselves."""
    find = getattr(dataset, "sample_ids", None)
    return np.asarray(find(numbers) if find else numbers, dtype=np.int64)
