"""Head and loss in chunks of tokens, gradients and all in the forward: whole logits never exist.

    for a chunk of tokens h [m, D]     x = h W^T + b [m, V]     loss, z-loss, dx = d loss / d x, in its place
                                       dh = dx W         dW += dx^T h in fp32         db += sum of dx

    forward    3 products, as a head's forward and backward have; keeps dh [N, D]; in fp32 dW [V, D], db [V]
    backward   scales them by the loss's gradient, and rounds dW to the weight's dtype

(Liger's fused linear cross-entropy does the same: Hsu et al. 2024, arXiv 2410.10989 §3.2. It sums dW in the
weight's dtype.) Under tensor parallelism W is this rank's rows of the vocabulary, and dh its part of a sum.

Cross-entropy by chunks of tokens: of each the sums, and the gradient of its logits, made at once.

    loss = -log p(target)      z-loss = z log(Z)^2      summed over counted tokens, in fp32
    d loss / d logits = (1 + 2 z log Z) softmax(logits) - one_hot(target);  0 in rows that are not counted

Of logits whose columns are spread over tp, `parallel/cross_entropy.py` makes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.spec.loss_chunks import chunk_tokens, head_tokens

PRODUCT_AT_ONCE = 1 << 24  # numbers of a 16-bit product that waits to be added to its fp32 sum: 32 MiB


def head_in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, loss: ChunkLoss, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """The sums of losses of hidden [..., D], weight [V, D], bias [V] against targets [...]: fp32 scalars.

    `keep`: gradients are wanted; that of the first sum is of both, and the second has none. A second
    backward through one graph raises RuntimeError.
    """
    losses: tuple[Tensor, Tensor] = _OfHead.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2), weight, bias, targets.flatten(), loss, keep
    )
    return losses


class _OfHead(torch.autograd.Function):
    """Holds its gradients itself: its backward frees them, though a split one keeps the graph for longer."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, loss: ChunkLoss, keep: bool
    ) -> tuple[Tensor, Tensor]:
        total, auxiliary = torch.zeros(2, device=hidden.device).unbind()
        wanted = [keep and needed for needed in ctx.needs_input_grad[:3]]
        sums, size = _Gradients.zeros(hidden, weight, wanted), head_tokens(len(weight))
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            logits = F.linear(hidden[rows], weight, bias)
            total, auxiliary = loss_in_place(loss, logits, targets[rows], keep, (total, auxiliary))
            if keep:
                sums.add(rows, logits, hidden[rows], weight)
            del logits
        ctx.mark_non_differentiable(auxiliary)
        ctx.gradients = sums if keep else None
        return total, auxiliary

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        sums, ctx.gradients = ctx.gradients, None
        if sums is None:
            raise RuntimeError("the head's loss has had its backward: its gradients are scaled in place")
        scaled: tuple[Tensor | None, ...] = sums.scaled(grad_outputs[0])
        return *scaled, None, None, None, None


@dataclass
class _Gradients:
    """Gradients of the head's input [N, D], weight [V, D] and bias [V]; null where none is wanted."""

    hidden: Tensor | None  # in its dtype, with its `headroom`
    weight: Tensor | None  # fp32 sums
    bias: Tensor | None
    dtype: torch.dtype  # of the parameters

    @classmethod
    def zeros(cls, hidden: Tensor, weight: Tensor, wanted: list[bool]) -> _Gradients:
        """None of a chunk yet; every chunk fills its own rows of `hidden`."""
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        of_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if wanted[2] else None
        return cls(of_hidden, of_weight, of_bias, weight.dtype)

    def add(self, rows: slice, gradient: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Adds a chunk, by the gradient of its logits [m, V], which has `headroom`, and its hidden [m, D]."""
        share = 1.0 / headroom(gradient.dtype)
        if self.hidden is not None:
            torch.mm(gradient, weight, out=self.hidden[rows])
        if self.weight is not None:
            _add_product(self.weight, gradient, hidden, share)
        if self.bias is not None:
            self.bias.add_(gradient.sum(0, dtype=torch.float32), alpha=share)

    def scaled(self, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients times the loss's own, each in the dtype of what it is a gradient of."""
        if self.hidden is not None:
            self.hidden.mul_(grad_output / headroom(self.hidden.dtype))
        of_weight, of_bias = (
            None if total is None else total.mul_(grad_output).to(self.dtype) for total in (self.weight, self.bias)
        )
        return self.hidden, of_weight, of_bias


def _add_product(total: Tensor, gradient: Tensor, hidden: Tensor, share: float) -> None:
    """total [V, D] += share x gradient^T hidden, in fp32. A product of 16 bits is rounded once a chunk, and made of
    some rows at a time: it lies beside the sum. In fp16 the share is taken before it is rounded, since sums over tokens
    could leave fp16's range."""
    if gradient.dtype == torch.float32:
        torch.addmm(total, gradient.t(), hidden, out=total)
        return
    nothing, rows = hidden.new_zeros(()), max(1, PRODUCT_AT_ONCE // hidden.shape[1])
    for some, columns in zip(torch.split(total, rows), torch.split(gradient, rows, dim=1), strict=True):
        some.add_(torch.addmm(nothing, columns.t(), hidden, beta=0, alpha=share))


IGNORED = -100  # the target of a token that isn't counted, as in PyTorch's losses


class Chunk(NamedTuple):
    """A chunk of n tokens; gradients are null where none is wanted."""

    total: Tensor  # the sum of token losses
    auxiliary: Tensor  # the sum of z-losses
    gradient: Tensor | None = None  # [n, V] fp32, of both sums, but for a factor of each row
    factor: Tensor | None = None  # [n]; 0 where a token isn't counted


ChunkLoss = Callable[[Tensor, Tensor, bool], Chunk]  # (logits [n, V], targets [n], gradient wanted)


def loss_in_place(
    loss: ChunkLoss, logits: Tensor, targets: Tensor, keep: bool, sums: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Adds losses of logits [N, V] to the sums, chunk by chunk; with `keep` gradients take their place."""
    (total, auxiliary), size = sums, chunk_tokens(logits.shape[-1])
    for part, wanted in zip(torch.split(logits, size), torch.split(targets, size), strict=True):
        chunk = loss(part, wanted, keep)
        total, auxiliary = total + chunk.total, auxiliary + chunk.auxiliary
        if keep:
            store_gradient(chunk, part)
        del chunk
    return total, auxiliary


def whole_rows(logits: Tensor, targets: Tensor, z_loss: float, keep: bool) -> Chunk:
    """The chunk of logits [n, V] and targets [n]; `keep`: whether the gradient is wanted."""
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    total = F.nll_loss(logs, targets, ignore_index=IGNORED, reduction="sum")
    counted, target = targets != IGNORED, targets.clamp(min=0)[:, None]
    log_z = logits.gather(1, target) - logs.gather(1, target)  # [n, 1]
    auxiliary = z_loss * (log_z[:, 0].square() * counted).sum()
    if not keep:
        return Chunk(total, auxiliary)
    chances = logs.exp_() if z_loss == 0.0 else logs.exp_().mul_(1.0 + 2.0 * z_loss * log_z)
    chances.scatter_add_(1, target, torch.full_like(log_z, -1.0))
    return Chunk(total, auxiliary, chances, counted)


def through_cap(chunk: Chunk, logits: Tensor, softcap: float) -> None:
    """From capped logits back to those before the cap: d c tanh(x / c) / d x = 1 - tanh(x / c)^2."""
    assert chunk.gradient is not None
    chunk.gradient.mul_((logits / softcap).square_().neg_().add_(1.0))


def store_gradient(chunk: Chunk, logits: Tensor) -> None:
    """Puts the chunk's gradient in the place of its logits [n, V]; in fp16 with `headroom`."""
    assert chunk.gradient is not None
    assert chunk.factor is not None
    torch.mul(chunk.gradient, (chunk.factor * headroom(logits.dtype))[:, None], out=logits)


def headroom(dtype: torch.dtype) -> float:
    """The gradient of an unlikely token, below 2^-24, would be 0 in fp16; the likeliest is 1."""
    return 1024.0 if dtype == torch.float16 else 1.0
