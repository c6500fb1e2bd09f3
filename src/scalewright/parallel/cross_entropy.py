"""The built-in loss of a micro-batch, as sums over its counted tokens: of logits, or of the head's input.

    of logits     logits [N, V] are there; their gradient takes their place, chunk by chunk of tokens
    of the head   chunk by chunk its logits, their loss and gradients: never whole logits (chunked_loss.py)

Logits are the largest tensor of a step: 2 GiB in bf16 for 8,192 tokens of 128,256. PyTorch's own loss keeps their
log-probabilities in fp32 beside them, and makes the gradient in two more of their size. Sizes decide which way is taken
(spec/loss_chunks.py). z-loss, z log(Z)^2 a token, keeps the normaliser Z near 1 (PaLM, Chowdhery et al. 2022 §5).

With prediction modules (multi-token prediction), of D depths, the auxiliary loss has another term:

    lambda / D  sum over depths k and tokens of -log p(token k further)    DeepSeek-AI 2024, 2412.19437 eq. 24

It is divided by the main loss's tokens, as there: a row's last k tokens have no target of depth k, and count.

Cross-entropy of logits whose columns are spread over the ranks of tp: no rank ever holds a whole row.

    rank r has logits x of its columns; one small all-gather joins two numbers per token:

        z_r = log sum exp(x)        t_r = the target's logit if the rank has its column, else 0

    on all ranks            log Z = log sum over r of exp(z_r)        loss = log Z - sum over r of t_r
    gradient of x           exp(x - log Z) - one_hot,  where x lies; the backward scales it

(Megatron-LM takes three all-reduces for it: of the maximum, the sum and the target's logit.) Columns that pad an
uneven vocabulary count for nothing, and their gradient is exactly 0. Everything is fp32, whatever the logits' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model.decoder import HeadProduct
from scalewright.parallel.chunked_loss import (
    IGNORED,
    Chunk,
    ChunkLoss,
    head_in_chunks,
    headroom,
    loss_in_place,
    through_cap,
    whole_rows,
)
from scalewright.parallel.functions import AxisGroup, axis_group, gather_slice, gathered
from scalewright.parallel.mesh import Mesh
from scalewright.spec.loss_chunks import LossSizes

Losses = tuple[Tensor, Tensor]  # the sum of token losses, that of z-losses: fp32 scalars


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy and z-loss, summed in fp32; the first sum's gradient is of both, the second has none.

    `columns`: logits are this rank's of the vocabulary; the sums are then the same on all ranks of tp, to the
    bit. `look` is called with every chunk's logits and its sum of losses. `mtp_weight`: lambda.
    """

    z_loss: float = 0.0
    columns: VocabularyColumns | None = None
    look: Callable[[Tensor, Tensor], None] | None = None
    mtp_weight: float = 0.0

    def __call__(self, logits: Tensor, targets: Tensor, softcap: float | None = None) -> Losses:
        """Of logits [..., V] and targets [...]; where a gradient is wanted it takes the logits' place. `softcap` caps
        them, in their place too. A second backward through one graph raises RuntimeError."""
        keep = logits.requires_grad and torch.is_grad_enabled()
        losses: Losses = _OfLogits.apply(  # type: ignore[no-untyped-call]
            logits.flatten(0, -2), targets.flatten(), partial(self.chunk, softcap=softcap), keep
        )
        return losses

    def of_head(self, targets: Tensor, softcap: float | None = None) -> HeadProduct:
        """The loss against targets [...], of the head's input, weight and bias; `softcap` caps its logits."""
        return partial(self._of_head, targets, softcap)

    def with_predictions(self, losses: Sequence[Losses]) -> Losses:
        """The losses of all depths as one pair: those of tokens further ahead are auxiliary."""
        (total, auxiliary), *ahead = losses
        share = self.mtp_weight / len(ahead)
        for further, of_logits in ahead:
            auxiliary = auxiliary + share * (further + of_logits)
        return total, auxiliary

    def _of_head(
        self, targets: Tensor, softcap: float | None, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Losses:
        parameters = [x for x in (weight, bias) if x is not None]
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden, *parameters))
        columns, size = weight.shape
        sizes = LossSizes(targets.numel(), columns, size, hidden.element_size())
        if not (sizes.head_in_chunks if keep else sizes.several):
            return self(F.linear(hidden, weight, bias), targets, softcap)
        return head_in_chunks(hidden, weight, bias, targets, partial(self.chunk, softcap=softcap), keep=keep)

    def chunk(self, logits: Tensor, targets: Tensor, keep: bool, softcap: float | None = None) -> Chunk:
        """A chunk of logits [n, V] and targets [n]; `keep`: whether the gradient is wanted.

        They are capped where they lie, so that no other tensor waits for the backward of the cap.
        """
        if softcap is not None:
            logits.div_(softcap).tanh_().mul_(softcap)
        if self.columns is None:
            chunk = whole_rows(logits, targets, self.z_loss, keep)
        else:
            chunk = cut_rows(logits, targets, self.columns, self.z_loss, keep)
        if self.look is not None:
            self.look(logits, chunk.total)
        if keep and softcap is not None:
            through_cap(chunk, logits, softcap)
        return chunk


class _OfLogits(torch.autograd.Function):
    """By chunks of tokens, whose gradient is made at once and where the logits lie."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, loss: ChunkLoss, keep: bool) -> Losses:
        total, auxiliary = torch.zeros(2, device=logits.device).unbind()
        logits = logits.detach()
        total, auxiliary = loss_in_place(loss, logits, targets, keep, (total, auxiliary))
        ctx.mark_non_differentiable(auxiliary)
        ctx.save_for_backward(logits if keep else None)
        return total, auxiliary

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad_outputs[0] / headroom(gradient.dtype)), None, None, None


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
    highest = logits[:, :true].amax(dim=1).float() if true else torch.zeros_like(target)
    exp_logits = torch.sub(logits, highest[:, None]).exp_()  # a new fp32 tensor, whatever the logits are
    exp_logits[:, true:] = 0.0
    local = torch.stack([highest + exp_logits.sum(dim=1).log(), target])  # [2, N]; -inf without columns
    ranks = gathered(local[None], 0, columns.group)  # [tp, 2, N]
    return exp_logits, highest, ranks[:, 0].logsumexp(dim=0), ranks[:, 1].sum(dim=0)
