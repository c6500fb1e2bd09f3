"""The validation loop: the mean loss over held-out tokens, and the same in bits per byte of text.

    bits per byte = nats per token / ln 2 / bytes per token

Bits per byte doesn't depend on the tokenizer, so models with different ones can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalewright.data.batch import IGNORED
from scalewright.data.dataset import Dataset
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.execute import run_losses
from scalewright.parallel.inputs import Micro, micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import release


@dataclass(frozen=True)
class Score:
    """A validation's result."""

    loss: float  # nats per counted token
    bits_per_byte: float | None  # None when the data don't record their text's bytes
    tokens: int


@torch.no_grad()
def validate(
    model: nn.Module,
    dataset: Dataset,
    mesh: Mesh,
    micro_batch: int,
    samples: int,
    total: Callable[[Micro], Tensor] | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> Score | None:
    """The loss over the first `samples` samples (fewer if the data ends), shared among all ranks.

    `total` returns this rank's loss sum of a micro-batch (an executor's; default: by the model's logits). The
    same samples on every layout: `micro_batch` is only how many are worked on at a time. Every rank runs
    the same number of forwards, since under FSDP each is a collective; a rank that has nothing left repeats
    the first rows and counts none of them. `stops` is called before each, on all ranks, for which it returns
    the same: with true the validation ends, and there is no score.
    """
    total = total or (lambda micro: run_losses(model, micro.tokens, micro, CrossEntropy())[0])
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64 if mesh.device.type != "mps" else torch.float32, device=mesh.device)
    stopped = False
    for micro, counts in _shares(model, dataset, mesh, micro_batch, samples):
        if stopped := stops():
            break
        loss = total(micro)
        if counts:
            sums[0] += loss.to(sums.dtype) / mesh.size("tp")  # whose ranks all have the same
            sums[1] += (micro.targets != IGNORED).sum().to(sums.dtype) / (mesh.size("tp") * mesh.size("pp"))
    release(model)
    model.train(was_training)
    if stopped:
        return None
    summed, tokens = all_sum(sums, mesh, "world").tolist()
    loss_per_token = summed / max(tokens, 1.0)
    per_byte = loss_per_token / math.log(2) / dataset.bytes_per_token
    return Score(loss_per_token, per_byte if math.isfinite(per_byte) else None, round(tokens))


def _shares(
    model: nn.Module, dataset: Dataset, mesh: Mesh, micro_batch: int, samples: int
) -> Iterator[tuple[Micro, bool]]:
    """This rank's micro-batches, and whether each counts."""
    wanted = wanted_by(model)
    ranks, rank = mesh.size("batch"), mesh.index("batch")
    samples = min(samples, len(dataset))
    for round_ in range(math.ceil(samples / (micro_batch * ranks))):
        start = (round_ * ranks + rank) * micro_batch
        counts = start < samples
        start = start if counts else 0
        rows = range(start, min(start + micro_batch, samples))
        yield micro_batches(dataset.batch(rows), micro_batch, mesh.device, wanted)[0], counts
