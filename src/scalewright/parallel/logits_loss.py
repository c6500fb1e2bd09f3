"""Cross-entropy by chunks of tokens: of each the sums, and the gradient of its logits, made at once.

    loss = -log p(target)      z-loss = z log(Z)^2      summed over counted tokens, in fp32
    d loss / d logits = (1 + 2 z log Z) softmax(logits) - one_hot(target);  0 in rows that are not counted

z-loss keeps the softmax's normaliser Z near 1 (PaLM, Chowdhery et al. 2022 §5). Of logits whose columns are
spread over tp, `parallel/vocabulary.py` makes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.spec.loss_chunks import chunk_tokens

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
