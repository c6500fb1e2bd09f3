"""Cross-entropy of logits whose columns are spread over the ranks of tp: no rank ever holds a whole row.

    rank r has logits x of its columns; one small all-gather joins two numbers per token:

        z_r = log sum exp(x)        t_r = the target's logit if the rank has its column, else 0

    on all ranks            log Z = log sum over r of exp(z_r)        loss = log Z - sum over r of t_r
    gradient of x           (exp(x - log Z) - one_hot) * grad_output,  in place

(Megatron-LM takes three all-reduces for it: of the maximum, the sum and the target's logit.) Columns that pad
an uneven vocabulary count for nothing, and their gradient is exactly 0. The z-loss, z * (log Z)^2, comes
with it. Everything is fp32, whatever the logits' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.functions import AxisGroup, axis_group, gather_slice, gathered
from scalewright.parallel.mesh import Mesh

IGNORED = -100  # the target of a token that isn't counted, as in PyTorch's losses


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


def parallel_cross_entropy(
    logits: Tensor, targets: Tensor, columns: VocabularyColumns, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy and z-loss of local logits [B, T, V/tp] against targets [B, T], fp32 sums.

    Both are the same on all ranks of tp, to the bit. A second backward through one graph raises.
    """
    losses: tuple[Tensor, Tensor] = _ParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), columns, z_loss
    )
    return losses


def full_logits(logits: Tensor, columns: VocabularyColumns) -> Tensor:
    """Local logits [B, T, V/tp] -> [B, T, V] on every rank, for a loss that can't work on a part.

    Every rank must then compute the same loss: each keeps its own columns' gradient.
    """
    return gather_slice(logits, -1, columns.group)[..., : columns.vocabulary]


class _ParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        true, counted = columns.true, targets != IGNORED
        column = targets - columns.start
        is_local = counted & (column >= 0) & (column < true)
        column = column.clamp(0, columns.width - 1)
        target = logits.gather(1, column[:, None])[:, 0].float() * is_local
        if true:
            highest = logits[:, :true].amax(dim=1).float()
        else:
            highest = torch.zeros_like(target)
        exp_logits = torch.sub(logits, highest[:, None]).exp_()  # a new fp32 tensor, whatever the logits are
        exp_logits[:, true:] = 0.0
        local = torch.stack([highest + exp_logits.sum(dim=1).log(), target])  # [2, N]; -inf without columns
        ranks = gathered(local[None], 0, columns.group)  # [tp, 2, N]
        log_z = ranks[:, 0].logsumexp(dim=0)
        total = ((log_z - ranks[:, 1].sum(dim=0)) * counted).sum()
        auxiliary = z_loss * (log_z.square() * counted).sum()
        ctx.save_for_backward(exp_logits, (highest - log_z).exp(), log_z, column, is_local, counted)
        ctx.z_loss, ctx.dtype = z_loss, logits.dtype
        return total, auxiliary

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        exp_logits, scale, log_z, column, is_local, counted = ctx.saved_tensors
        grad_total = grad_log_z = grad_outputs[0]
        if ctx.z_loss:
            grad_log_z = grad_total + grad_outputs[1] * (2.0 * ctx.z_loss) * log_z
        # In place: there is no second backward.
        grad_logits = exp_logits.mul_((scale * grad_log_z * counted)[:, None])
        grad_logits.scatter_add_(1, column[:, None], -(grad_total * is_local)[:, None])
        return grad_logits.to(ctx.dtype), None, None, None
