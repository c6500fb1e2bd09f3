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
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.functions import AxisGroup, axis_group, gather_slice, gathered
from scalewright.parallel.mesh import Mesh
from scalewright.spec.loss_chunks import chunk_tokens

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

    Both are the same on all ranks of tp, to the bit. Where a gradient is wanted it takes the logits' place;
    that of the first sum is of both, and the second has none. A second backward through one graph raises.
    """
    keep = logits.requires_grad and torch.is_grad_enabled()
    losses: tuple[Tensor, Tensor] = _ParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), columns, z_loss, keep
    )
    return losses


def full_logits(logits: Tensor, columns: VocabularyColumns) -> Tensor:
    """Local logits [B, T, V/tp] -> [B, T, V] on every rank, for a loss that can't work on a part.

    Every rank must then compute the same loss: each keeps its own columns' gradient.
    """
    return gather_slice(logits, -1, columns.group)[..., : columns.vocabulary]


def store_gradient(gradient: Tensor, factor: Tensor, logits: Tensor) -> None:
    """Puts gradient [n, V] x factor [n] in the place of logits [n, V]; in fp16 with `_headroom`."""
    torch.mul(gradient, (factor * _headroom(logits.dtype))[:, None], out=logits)


def scale_gradient(gradient: Tensor, grad_output: Tensor) -> Tensor:
    """A stored gradient times the loss's, in place: there is no second backward."""
    return gradient.mul_(grad_output / _headroom(gradient.dtype))


def _headroom(dtype: torch.dtype) -> float:
    """The gradient of an unlikely token, below 2^-24, would be 0 in fp16; the likeliest is 1."""
    return 1024.0 if dtype == torch.float16 else 1.0


class _ParallelCrossEntropy(torch.autograd.Function):
    """By chunks of tokens, each with a gather of its own."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, columns: VocabularyColumns, z_loss: float, keep: bool
    ) -> tuple[Tensor, Tensor]:
        total, auxiliary = torch.zeros(2, device=logits.device).unbind()
        logits, size = logits.detach(), chunk_tokens(columns.width)
        for part, wanted in zip(torch.split(logits, size), torch.split(targets, size), strict=True):
            counted, column = wanted != IGNORED, wanted - columns.start
            is_local = counted & (column >= 0) & (column < columns.true)
            column = column.clamp(0, columns.width - 1)
            exp_logits, highest, log_z, target = _normalise(part, column, is_local, columns)
            total = total + ((log_z - target) * counted).sum()
            auxiliary = auxiliary + z_loss * (log_z.square() * counted).sum()
            if keep:
                factor = (highest - log_z).exp() * (1.0 + 2.0 * z_loss * log_z)
                exp_logits.scatter_add_(1, column[:, None], -(is_local / factor)[:, None])
                store_gradient(exp_logits, factor * counted, part)
            del exp_logits
        ctx.mark_non_differentiable(auxiliary)
        ctx.save_for_backward(logits if keep else None)
        return total, auxiliary

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return scale_gradient(gradient, grad_outputs[0]), None, None, None, None


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
