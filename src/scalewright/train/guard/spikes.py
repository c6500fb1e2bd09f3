"""Spikes: a loss or a gradient norm far above those of the last steps. All on the device, no read.

    z = (x - median) / max(1.4826 * MAD, floor)        x: the loss, and the logarithm of the gradient norm
    spike: z > 6, of a window of 128 steps that holds at least 64

The window, its half and the 6 are those of OLMo-core's skip-step optimizer (Ai2, 2024), which takes mean and
standard deviation. Median and MAD (the median distance from the median, times 1.4826 that of a normal
distribution; Hampel 1974) hardly move for a spike that is in the window, so the second of two isn't hidden by
the first; and a level that has really changed is the usual one after 64 steps, so that skipping can't go on
for ever. Norms are skewed to the right, their logarithms are nearly normal. Floors keep a window of nearly
equal values from calling any difference a spike: 6 floors are 3% of the loss, and 35% of the norm.

ZClip (Kumar et al. 2025, arXiv:2504.02507) scales an unusual gradient instead. With g the norm, mean and
variance by moving averages of 0.97 (of the first 25 norms, their own):

    z = (g - mean) / (sd + 1e-6)        z > 2.5:  g is scaled to  mean + 2.5^2 / z * sd
    mean <- 0.97 mean + 0.03 g*         variance <- 0.97 variance + 0.03 (g* - mean)^2        g*: g as scaled
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

WINDOW, HISTORY, SIGMAS = 128, 64, 6.0
NORMAL = 1.4826  # MAD of a normal distribution -> its standard deviation
LOSS_FLOOR, LOG_NORM_FLOOR = 0.005, 0.05  # of a standard deviation: relative to the loss; of the log norm
TINY = 1e-30  # a gradient norm of 0 has no logarithm

ALPHA, ZCLIP_SIGMAS, WARM_UP, EPSILON = 0.97, 2.5, 25, 1e-6  # ZClip's, as published


class Usual:
    """The last losses and gradient norms, and how far a new one is above them."""

    def __init__(self, device: torch.device) -> None:
        self.window = torch.full((2, WINDOW), torch.nan, device=device)  # loss; log norm. Oldest first
        self._floor = torch.tensor([LOSS_FLOOR, 0.0], device=device)
        self._least = torch.tensor([TINY, LOG_NORM_FLOOR], device=device)

    def look(self, loss: Tensor, norm: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
        """(z, usual) of loss and norm, fp32 [2] each; z is 0 while there is too little to compare with. Scalars on the
        device. Values that aren't finite are left out of the window."""
        values = torch.stack([loss, norm.clamp(min=TINY).log()])
        count = (~torch.isnan(self.window[0])).sum()
        middle = ((count - 1).clamp(min=0) // 2).expand(2, 1)
        centre = _at(self.window, middle)
        spread = NORMAL * _at((self.window - centre[:, None]).abs(), middle)
        spread = torch.maximum(spread, torch.maximum(self._floor * centre.abs(), self._least))
        comparable = finite & (count >= HISTORY)
        z = torch.where(comparable, (values - centre) / spread, 0.0)
        moved = torch.cat([self.window[:, 1:], values[:, None]], dim=1)
        self.window = torch.where(finite, moved, self.window)
        usual = torch.where(comparable, torch.stack([centre[0], centre[1].exp()]), 0.0)
        return z, usual

    def state(self) -> dict[str, object]:
        """Plain data, exact: fp32 numbers as Python's floats."""
        return {"window": [[x for x in row if x == x] for row in self.window.tolist()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave."""
        self.window.fill_(torch.nan)
        for row, values in zip(self.window, state.get("window", ()), strict=False):
            if values:
                row[-len(values) :] = torch.tensor(values[-WINDOW:], device=row.device)


def _at(rows: Tensor, place: Tensor) -> Tensor:
    """The number at a place of each sorted row; NaN sorts last. (`median` isn't deterministic on a GPU.)"""
    return rows.sort(dim=1).values.gather(1, place)[:, 0]


class ZClip:
    """Moving mean and variance of the gradient norm, and how far a norm above them is scaled down."""

    def __init__(self, device: torch.device) -> None:
        self.moments = torch.zeros(3, device=device)  # norms seen, mean, variance

    def look(self, norm: Tensor, finite: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(factor, z, mean), scalars on the device: what scales the gradient (else 1), how unusual it is (else 0)."""
        count, mean, variance = self.moments.unbind()
        deviation = variance.sqrt()
        z = torch.where(finite & (count >= WARM_UP), (norm - mean) / (deviation + EPSILON), 0.0)
        high = z > ZCLIP_SIGMAS
        target = torch.where(high, mean + ZCLIP_SIGMAS**2 / z * deviation, norm)
        # The first norms' own mean and variance, by Welford's update; later the moving ones.
        number = count + 1
        step = torch.where(count < WARM_UP, 1 / number, 1 - ALPHA)
        new_mean = mean + step * (target - mean)
        early = variance + ((target - mean) * (target - new_mean) - variance) / number
        late = ALPHA * variance + (1 - ALPHA) * (target - new_mean).square()
        new = torch.stack([number, new_mean, torch.where(count < WARM_UP, early, late)])
        self.moments = torch.where(finite, new, self.moments)
        return torch.where(high, target / norm, 1.0), torch.where(high, z, 0.0), mean

    def state(self) -> dict[str, object]:
        return {"moments": self.moments.tolist()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.moments = torch.tensor(state.get("moments", [0.0, 0.0, 0.0]), device=self.moments.device)
