"""Cross-entropy of logits whose columns are spread over the ranks of tp: nobody ever holds a whole row.

    rank r has logits x of its columns, and gives of each token two numbers, in one small all-gather:

        z_r = log sum exp(x)        t_r = the target's logit if its column is here, else 0

    all ranks then know     log Z = log sum over r of exp(z_r)        loss = log Z - sum over r of t_r
    gradient, of own columns         (exp(x - log Z) - one_hot) * slope,  in place

(Megatron-LM takes three all-reduces for it: of the maximum, the sum and the target's logit.) Columns that pad
an uneven vocabulary count for nothing, and their gradient is exactly 0. The z-loss, z * (log Z)^2, comes
with it. Everything is fp32, whatever the logits' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.functions import Team, gather_slice, gathered, make_team
from scalewright.parallel.mesh import Mesh

IGNORED = -100  # the target of a token that isn't counted, as in PyTorch's losses


@dataclass(frozen=True)
class Columns:
    """This rank's part of the vocabulary: `width` logits of each token, of which the first `true` count."""

    team: Team
    vocabulary: int

    @property
    def width(self) -> int:
        """Columns on every rank, padding included."""
        return -(-self.vocabulary // self.team.size)

    @property
    def start(self) -> int:
        """The token of the first column."""
        return self.team.index * self.width

    @property
    def true(self) -> int:
        """Columns that stand for a token; 0 on a rank that has none."""
        return max(0, min(self.width, self.vocabulary - self.start))


def make_columns(mesh: Mesh, vocabulary: int) -> Columns:
    """The columns of this rank of tp."""
    return Columns(make_team(mesh, "tp"), vocabulary)


def parallel_cross_entropy(
    logits: Tensor, targets: Tensor, columns: Columns, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy and z-loss of local logits [B, T, V/tp] against targets [B, T], fp32 sums.

    Both are the same on all ranks of tp, to the bit. A second backward through one graph raises.
    """
    found: tuple[Tensor, Tensor] = _ParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), columns, z_loss
    )
    return found


def full_logits(logits: Tensor, columns: Columns) -> Tensor:
    """Local logits [B, T, V/tp] -> [B, T, V] on every rank, for a loss that can't work on a part.

    Every rank must then compute the same loss: each keeps its own columns' gradient.
    """
    return gather_slice(logits, -1, columns.team)[..., : columns.vocabulary]


class _ParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, logits: Tensor, targets: Tensor, columns: Columns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        true, counted = columns.true, targets != IGNORED
        column = targets - columns.start
        here = counted & (column >= 0) & (column < true)
        column = column.clamp(0, columns.width - 1)
        target = logits.gather(1, column[:, None])[:, 0].float() * here
        if true:
            highest = logits[:, :true].amax(dim=1).float()
        else:
            highest = torch.zeros_like(target)
        chances = torch.sub(logits, highest[:, None]).exp_()  # a new fp32 tensor, whatever the logits are
        chances[:, true:] = 0.0
        own = torch.stack([highest + chances.sum(dim=1).log(), target])  # [2, N]; -inf where nothing is here
        team = columns.team
        every = gathered(own[None], 0, team.name, team.size, team.clock)  # [tp, 2, N]
        log_z = every[:, 0].logsumexp(dim=0)
        total = ((log_z - every[:, 1].sum(dim=0)) * counted).sum()
        auxiliary = z_loss * (log_z.square() * counted).sum()
        context.save_for_backward(chances, (highest - log_z).exp(), log_z, column, here, counted)
        context.z_loss, context.dtype = z_loss, logits.dtype
        return total, auxiliary

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        chances, scale, log_z, column, here, counted = context.saved_tensors
        slope = slopes[0]
        if context.z_loss:
            slope = slope + slopes[1] * (2.0 * context.z_loss) * log_z
        gradient = chances.mul_((scale * slope * counted)[:, None])  # in place: there's no second backward
        gradient.scatter_add_(1, column[:, None], -(slopes[0] * here)[:, None])
        return gradient.to(context.dtype), None, None, None
