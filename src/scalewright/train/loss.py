"""The loss of a micro-batch, as a sum over its counted tokens.

    loss = sum over tokens of -log p(target)          z-loss = z * sum over tokens of log(Z)^2

A step divides the sums by the tokens of the whole global batch, which is known before the first backward, so
that ranks, micro-batches and masks change nothing. z-loss keeps the softmax's normaliser Z near 1 (PaLM,
Chowdhery et al. 2022 §5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.data.batch import IGNORED
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.vocabulary import full_logits, make_columns, parallel_cross_entropy
from scalewright.spec.run import PythonRef
from scalewright.train.own_loss import OwnLoss
from scalewright.train.reduction import called_part

DEFAULT_LOSS = "cross_entropy"


def cross_entropy(logits: Tensor, targets: Tensor, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross-entropy and z-loss of logits [B, T, V] against targets [B, T], summed in fp32."""
    flat, wanted = logits.flatten(0, -2), targets.flatten()
    total: Tensor = _SummedCrossEntropy.apply(flat, wanted)  # type: ignore[no-untyped-call]
    if z_loss == 0.0:
        return total, total.new_zeros(())
    log_z = torch.logsumexp(flat.float(), dim=-1)
    return total, z_loss * (log_z.square() * (wanted != IGNORED)).sum()


class _SummedCrossEntropy(torch.autograd.Function):
    """`F.cross_entropy(..., reduction="sum")`, whose gradient is made where the log-probabilities lie.

        d total / d logits = softmax(logits) - one_hot(target), and 0 in rows that are not counted

    Logits are the largest tensor of a step. PyTorch's own backward fills another of their size with zeros and
    makes the gradient in yet another.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        context.save_for_backward(logs, targets)
        context.dtype = logits.dtype
        return F.nll_loss(logs, targets, ignore_index=IGNORED, reduction="sum")

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        logs, targets = context.saved_tensors
        counted = targets != IGNORED
        gradient = logs.exp_()  # in place: a second backward through the same graph raises
        hot = targets.clamp(min=0)[:, None]  # of rows that are not counted, too: the last factor is 0 there
        gradient.scatter_add_(1, hot, -torch.ones_like(hot, dtype=gradient.dtype))
        gradient.mul_((counted * slopes[0])[:, None])
        return gradient.to(context.dtype), None


def build_loss(
    loss: PythonRef | str,
    z_loss: float,
    load: Callable[[PythonRef], Callable[..., Tensor]],
    mesh: Mesh | None = None,
    vocabulary: int | None = None,
    *,
    check: bool = False,
) -> Loss:
    """The run's loss. A user's own is called with (logits, targets); see `own_loss` for what it returns.

    `check`: the first micro-batches show whether it is the sum or the mean that the run file declares.

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
        return partial(parallel_cross_entropy, columns=columns, z_loss=z_loss)
    return partial(cross_entropy, z_loss=z_loss)
