"""Dynamic loss scaling, for fp16: gradients too small for fp16 (below 6e-8) are carried by a larger loss.

    backward of  loss * scale     gradients are scale times too large, in fp16 and in their fp32 sums
    norm, clip   / scale          one factor for both, no pass of its own
    inf or NaN in gradients       the update is left out, scale / 2
    2,000 good steps in a row     scale * 2

The numbers are those of `torch.amp.GradScaler` (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2); it
can't be used itself, since it reads on the host whether there was an inf, and on one rank alone. Scales are
powers of two, so that scaling rounds nothing.

An overflow with a finite loss is how the scale finds its place, and no fault; at the floor it is one: nothing
is left to halve. A loss that isn't finite doesn't come from the scale, which then stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIRST, FLOOR, CEILING = 2.0**16, 1.0, 2.0**32
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """The scale of the next step, and the good steps since it last changed: on the device."""

    def __init__(self, device: torch.device) -> None:
        self.value = torch.tensor(FIRST, device=device)
        self.good = torch.zeros((), device=device)

    def overflowed(self, loss_finite: Tensor, finite: Tensor) -> Tensor:
        """Whether a step's gradients overflowed for their scale; bools on the device."""
        return loss_finite & ~finite & (self.value > FLOOR)

    def adapt(self, overflow: Tensor, finite: Tensor) -> None:
        """The scale of the next step."""
        self.good = torch.where(overflow, 0.0, self.good + finite.float())
        grown = self.good >= INTERVAL
        factor = torch.where(overflow, BACKOFF, torch.where(grown, GROWTH, 1.0))
        self.value = (self.value * factor).clamp(FLOOR, CEILING)
        self.good = torch.where(grown, 0.0, self.good)

    def state(self) -> dict[str, object]:
        """Plain data, exact."""
        return {"value": self.value.item(), "good": self.good.item()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave."""
        self.value.fill_(state.get("value", FIRST))
        self.good.fill_(state.get("good", 0.0))
