"""A user's own loss: `loss: {python: mine:loss}`, called with (logits [B, T, V], targets [B, T]).

    reduction: sum (default)    the number is the sum over counted tokens (targets other than -100)
    reduction: mean             it is their mean; it is multiplied by the micro-batch's counted tokens

A step divides the sum of all micro-batches by the counted tokens of the global batch, so a mean taken for a
sum would train with gradients that many times too small, without an error. The first micro-batch shows which
it is: a sum over twice the tokens is twice as large, a mean stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from scalewright.data.batch import IGNORED
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef
from scalewright.train.reduction import reduction_of

COLUMNS = 64  # tokens of the row that the check looks at: its copies of the logits stay small
ATTEMPTS = 8  # micro-batches after which a loss that can't be judged (always 0, say) is used as declared
SAME, TWICE = 1.0, 2.0
TOLERANCE = 0.02  # bf16 logits and a few rounded sums are within it; a mean and a sum are 1 apart

Function = Callable[..., Tensor]


class OwnLoss:
    """A user's loss as a sum over counted tokens; its first micro-batches are checked against `reduction`."""

    def __init__(self, function: Function, loss: PythonRef, *, check: bool = True) -> None:
        self.function, self.name, self.reduction = function, loss.python, reduction_of(loss)
        self.attempts = ATTEMPTS if check else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum over the micro-batch's counted tokens, an fp32 scalar; raises UserError."""
        if self.attempts and torch.is_grad_enabled():
            self.attempts -= 1
            if self._settled(logits.detach(), targets):
                self.attempts = 0
        total = self._scalar(self.function(logits, targets))
        if logits.requires_grad and not total.requires_grad and torch.is_grad_enabled():
            raise UserError(
                "the loss has no gradient",
                f"python: {self.name}",
                "compute it from the logits with torch operations, without .item() or .detach()",
            )
        if self.reduction == "sum":
            return total
        counted = (targets != IGNORED).sum()
        # a mean over no token is 0/0 in most losses
        return torch.where(counted > 0, total, torch.zeros_like(total)) * counted

    def _scalar(self, value: Any) -> Tensor:
        """The loss in fp32; raises UserError when it isn't one number."""
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"the loss gave {kind}, not one number",
                f"python: {self.name}",
                "return the sum over counted tokens as a tensor of one number",
            )
        return value.reshape(()).float()

    @torch.no_grad()
    def _settled(self, logits: Tensor, targets: Tensor) -> bool:
        """Whether the loss was seen to have its declared reduction; raises UserError for the other one."""
        part = _counted_part(logits, targets)
        if part is None:
            return False
        growth = [self._growth(*part, dim) for dim in (0, 1)]  # with twice the rows, twice the length
        if any(value is None for value in growth):
            return False
        same = [abs(value - SAME) < TOLERANCE for value in growth if value is not None]
        twice = [abs(value - TWICE) < TOLERANCE for value in growth if value is not None]
        if self.reduction == "mean":
            if all(twice):
                raise UserError(
                    "reduction: mean is set, but the loss of twice the tokens is twice as large: a sum",
                    f"python: {self.name}",
                    "remove reduction: mean, or return the mean over counted tokens",
                )
        elif all(same):
            raise UserError(
                "the loss is a mean (twice the tokens give the same number), and a step divides sums by the "
                "global batch's tokens",
                f"python: {self.name}",
                "return the sum over counted tokens, or set reduction: mean beside python:",
            )
        # The same from twice the rows or twice the length alone is no mean: a loss may count one token a row.
        return True

    def _growth(self, logits: Tensor, targets: Tensor, dim: int) -> float | None:
        """loss(part twice) / loss(part); null where there is none: 0, not finite, or not for such a part."""
        try:
            with _random_state_kept(logits.device):
                once = self._scalar(self.function(logits, targets)).item()
            with _random_state_kept(logits.device):
                doubled = self.function(torch.cat([logits] * 2, dim), torch.cat([targets] * 2, dim))
                twice = self._scalar(doubled).item()
        except Exception:  # a loss that takes whole rows alone; if it is wrong, the real call raises it
            return None
        value = twice / once if once else math.nan
        return value if math.isfinite(value) else None


def _counted_part(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    """One row's tokens from its first counted one on, [1, <=COLUMNS, V] and [1, <=COLUMNS]; null: none."""
    if logits.dim() != 3 or targets.shape != logits.shape[:2]:
        return None
    places = (targets != IGNORED).nonzero()
    if not len(places):
        return None
    row, first = places[0].tolist()
    rows, columns = slice(row, row + 1), slice(first, first + COLUMNS)
    return logits[rows, columns], targets[rows, columns]


def _random_state_kept(device: torch.device) -> AbstractContextManager[Any]:
    """Random numbers that the check draws leave the run's own as they were."""
    if device.type == "mps":
        return nullcontext()
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
