"""Cross-entropy of logits whose columns are spread over the ranks of tp: no rank ever holds a whole row.

    rank r has logits x of its columns; one small all-gather joins two numbers per token:

        z_r = log sum exp(x)        t_r = the target's logit if the rank has its column, else 0

    on all ranks            log Z = log sum over r of exp(z_r)        loss = log Z - sum over r of t_r
    gradient of x           exp(x - log Z) - one_hot,  where x lies; the backward scales it

(Megatron-LM takes three all-reduces for it: of the maximum, the sum and the target's logit.) Columns that pad
an uneven vocabulary count for nothing, and their gradient is exactly 0. The z-loss, z * (log Z)^2, comes
with it. Everything is fp32, whatever the logits' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.parallel.functions import AxisGroup, axis_group, gather_slice, gathered
from scalewright.parallel.logits_loss import IGNORED, Chunk
from scalewright.parallel.mesh import Mesh


@dataclass(frozen=True)
class VocabularyColumns:
    """This rank's part of the vocabulary: `width` logits of each token, of which the first `true` count."""

    group: AxisGroup
    vocabulary: int

    @property
    def width(self) -> int:
        """Columns on every rank, padding included."""
        return -(-self.vocabulary // self.group.size)

    @property
    def start(self) -> int:
        """The token of the first column."""
        return self.group.index * self.width

    @property
    def true(self) -> int:
        """Columns that stand for a token; 0 on a rank that has none."""
        return max(0, min(self.width, self.vocabulary - self.start))


def make_columns(mesh: Mesh, vocabulary: int) -> VocabularyColumns:
    """The columns of this rank of tp."""
    return VocabularyColumns(axis_group(mesh, "tp"), vocabulary)


def full_logits(logits: Tensor, columns: VocabularyColumns) -> Tensor:
    """Local logits [B, T, V/tp] -> [B, T, V] on every rank, for a loss that can't work on a part.

    Every rank must then compute the same loss: each keeps its own columns' gradient.
    """
    return gather_slice(logits, -1, columns.group)[..., : columns.vocabulary]


def cut_rows(logits: Tensor, targets: Tensor, columns: VocabularyColumns, z_loss: float, keep: bool) -> Chunk:
    """The chunk of local logits [n, V/tp] and targets [n]: its sums are the same on all ranks, to the bit."""
    counted, column = targets != IGNORED, targets - columns.start
    is_local = counted & (column >= 0) & (column < columns.true)
    column = column.clamp(0, columns.width - 1)
    exp_logits, highest, log_z, target = _normalise(logits, column, is_local, columns)
    total = ((log_z - target) * counted).sum()
    auxiliary = z_loss * (log_z.square() * counted).sum()
    if not keep:
        return Chunk(total, auxiliary)
    factor = (highest - log_z).exp() * (1.0 + 2.0 * z_loss * log_z)
    exp_logits.scatter_add_(1, column[:, None], -(is_local / factor)[:, None])
    return Chunk(total, auxiliary, exp_logits, factor * counted)


def _normalise(
    logits: Tensor, column: Tensor, is_local: Tensor, columns: VocabularyColumns
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """exp(logits - highest) [n, V/tp]; this rank's highest, log Z and the target's logit, each [n]; fp32."""
    true = columns.true
    target = logits.gather(1, column[:, None])[:, 0].float() * is_local
    if true:
        highest = logits[:, :true].amax(dim=1).float()
    else:
        highest = torch.zeros_like(target)
    exp_logits = torch.sub(logits, highest[:, None]).exp_()  # a new fp32 tensor, whatever the logits are
    exp_logits[:, true:] = 0.0
    local = torch.stack([highest + exp_logits.sum(dim=1).log(), target])  # [2, N]; -inf without columns
    ranks = gathered(local[None], 0, columns.group)  # [tp, 2, N]
    return exp_logits, highest, ranks[:, 0].logsumexp(dim=0), ranks[:, 1].sum(dim=0)
