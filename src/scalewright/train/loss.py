"""The loss of a micro-batch, as a sum over its counted tokens.

    loss = sum over tokens of -log p(target)          z-loss = z * sum over tokens of log(Z)^2

A step divides the sums by the tokens of the whole global batch, which is known before the first backward, so
that ranks, micro-batches and masks change nothing. z-loss keeps the softmax's normaliser Z near 1 (PaLM,
Chowdhery et al. 2022 §5).

With prediction modules (multi-token prediction), of D depths, the auxiliary loss has another term:

    lambda / D  sum over depths k and tokens of -log p(token k further)    DeepSeek-AI 2024, 2412.19437 eq. 24

It is divided by the main loss's tokens, as there: a row's last k tokens have no target of depth k, and count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.data.batch import IGNORED
from scalewright.model.prediction import Predictions
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.vocabulary import (
    full_logits,
    make_columns,
    parallel_cross_entropy,
    scale_gradient,
    store_gradient,
)
from scalewright.spec.loss_chunks import chunk_tokens
from scalewright.spec.run import PythonRef
from scalewright.train.own_loss import OwnLoss
from scalewright.train.reduction import called_part

DEFAULT_LOSS = "cross_entropy"


def cross_entropy(logits: Tensor, targets: Tensor, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross-entropy and z-loss of logits [B, T, V] against targets [B, T], summed in fp32.

    Where a gradient is wanted it takes the logits' place, so that they are gone afterwards; that of the first
    sum is of both, and the second has none.
    """
    keep = logits.requires_grad and torch.is_grad_enabled()
    losses: tuple[Tensor, Tensor] = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), z_loss, keep
    )
    return losses


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy by chunks of tokens, whose gradient is made at once and where the logits lie.

        d total / d logits = (1 + 2 z log Z) softmax(logits) - one_hot(target); 0 in rows that are not counted

    Logits are the largest tensor of a step: 2 GiB in bf16 for 8,192 tokens of 128,256. PyTorch's own loss
    keeps their log-probabilities in fp32 beside them, and makes the gradient in two more of their size.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, z_loss: float, keep: bool
    ) -> tuple[Tensor, Tensor]:
        total, auxiliary = torch.zeros(2, device=logits.device).unbind()
        logits, size = logits.detach(), chunk_tokens(logits.shape[-1])
        for part, wanted in zip(torch.split(logits, size), torch.split(targets, size), strict=True):
            logs = torch.log_softmax(part, dim=-1, dtype=torch.float32)
            total = total + F.nll_loss(logs, wanted, ignore_index=IGNORED, reduction="sum")
            counted, target = wanted != IGNORED, wanted.clamp(min=0)[:, None]
            log_z = part.gather(1, target) - logs.gather(1, target)  # [n, 1]
            auxiliary = auxiliary + z_loss * (log_z[:, 0].square() * counted).sum()
            if keep:
                chances = logs.exp_() if z_loss == 0.0 else logs.exp_().mul_(1.0 + 2.0 * z_loss * log_z)
                chances.scatter_add_(1, target, torch.full_like(log_z, -1.0))
                store_gradient(chances, counted, part)
                del chances
            del logs
        ctx.mark_non_differentiable(auxiliary)
        ctx.save_for_backward(logits if keep else None)
        return total, auxiliary

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return scale_gradient(gradient, grad_outputs[0]), None, None, None


def build_loss(
    loss: PythonRef | str,
    z_loss: float,
    load: Callable[[PythonRef], Callable[..., Tensor]],
    mesh: Mesh | None = None,
    vocabulary: int | None = None,
    *,
    check: bool = False,
    mtp_weight: float = 0.0,
) -> Loss:
    """The run's loss. A user's own is called with (logits, targets); see `own_loss` for what it returns.

    `check`: the first micro-batches show whether it is the sum or the mean that the run file declares.
    `mtp_weight`: of the loss of prediction modules, where the model gives `Predictions`.

    Under tensor parallelism (`mesh` with tp > 1) it takes this rank's columns of a `vocabulary` of that many
    tokens. A user's own then gets whole logits, gathered, on every rank, and must give the same on each.
    """
    columns = None
    if mesh is not None and mesh.size("tp") > 1:
        if vocabulary is None:
            raise ValueError("tensor parallelism cuts the vocabulary: say how large it is")
        columns = make_columns(mesh, vocabulary)
    if isinstance(loss, PythonRef):
        custom_loss = OwnLoss(load(called_part(loss)), loss, check=check)

        def wrapped(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            total = custom_loss(logits if columns is None else full_logits(logits, columns), targets)
            return total, total.new_zeros(())

        return wrapped
    if columns is not None:
        plain: Loss = partial(parallel_cross_entropy, columns=columns, z_loss=z_loss)
    else:
        plain = partial(cross_entropy, z_loss=z_loss)
    return partial(_of_predictions, plain, mtp_weight)


def _of_predictions(
    plain: Loss, weight: float, out: Tensor | Predictions, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of logits; or of predictions, whose targets are [1 + depths, B, T]."""
    if isinstance(out, Tensor):
        return plain(out, targets)
    total, auxiliary = plain(out.logits, targets[0])
    share = weight / len(out.ahead)
    for logits, further in zip(out.ahead, targets[1:], strict=True):
        loss, of_logits = plain(logits, further)
        auxiliary = auxiliary + share * (loss + of_logits)
    return total, auxiliary
