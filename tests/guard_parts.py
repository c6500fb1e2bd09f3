"""Models and losses of a user's that give numbers which aren't finite, on purpose and at a chosen place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import parts
from loss_function import cross_entropy


class _Backwards(torch.autograd.Function):
    """The identity, whose gradient is NaN."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *slopes: Any) -> Any:
        return slopes[0] * float("nan")


class Moody(parts.Words):
    """Has a number go bad in its second block when a row begins with a word of `bad`, forward or backward;
    and counts its forwards in a buffer."""

    def __init__(self, bad: tuple[int, ...], backward: bool, rank: int | None) -> None:
        super().__init__(67, 24, 2, 0.0)
        self.bad, self.backward, self.rank = bad, backward, rank
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(1)
        x = self.blocks[0](self.embed(tokens))
        mine = self.rank is None or (torch.distributed.is_initialized() and torch.distributed.get_rank() == self.rank)
        if mine and self.training and any(int(word) in self.bad for word in tokens[:, 0]):
            if self.backward:
                return self.head(_Backwards.apply(self.blocks[1](x)))
            x = x + float("nan")
        return self.head(self.blocks[1](x))


def moody(bad: list[int] = (), backward: bool = False, rank: int | None = None) -> nn.Module:  # type: ignore[assignment]
    """A user's model."""
    return Moody(tuple(bad), backward, rank)


def with_a_bad_weight() -> nn.Module:
    """A user's model with a NaN in the last row of one weight."""
    model = parts.build()
    with torch.no_grad():
        model.get_parameter("blocks.1.up.weight")[-1, 0] = float("nan")
    return model


def sometimes(logits: Tensor, targets: Tensor, bad: list[int], value: str = "nan") -> Tensor:
    """Our own loss, but `value` at the training calls of these numbers (from 1), in each process."""
    total = cross_entropy(logits, targets)[0]
    if not torch.is_grad_enabled():  # whether it is a sum is being tried
        return total
    sometimes.calls = getattr(sometimes, "calls", 0) + 1  # type: ignore[attr-defined]
    return total * float(value) if sometimes.calls in bad else total  # type: ignore[attr-defined]


def plain_adam(groups: Any, lr: float) -> torch.optim.Optimizer:
    """A user's optimizer that no flag can stop."""
    return torch.optim.AdamW(groups, lr=lr, foreach=True)
