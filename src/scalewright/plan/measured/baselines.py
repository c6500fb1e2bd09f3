"""Baselines that the planner must beat: every device at half of its peak, whatever the layout.

seconds = FLOPs / (devices · peak / 2)           FLOPs: the model's, or with full recomputation; both
with the bubble: · (1 + (p - 1) / (m v))         with attention unmasked, as hardware computes it
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.evaluate import Outcome
from scalewright.plan.cost.table import RECOMPUTE

SHARE = 0.5
NAMES = ("model", "hardware", "model_and_bubble", "hardware_and_bubble")


def baselines(outcome: Outcome) -> dict[str, np.ndarray]:
    """Seconds of a step of every row by each baseline of NAMES."""
    at, t = outcome.step.at, outcome.step.at.table
    block, ends = at.prices.square[t.unit, 1], at.prices.square[t.unit][:, (0, 2, 3)].sum(1)
    ranks = t.tp * t.cp * t.dp * t.accumulation
    layers = at.work("blocks")
    model = 3 * (block * layers + ends) * ranks
    full = t.recompute == RECOMPUTE.index("full")
    hardware = model + np.where(full, block * layers * ranks, 0.0)
    rate = at.chip("peak") * SHARE * t.devices
    bubble = 1 + (t.pp - 1) / (t.accumulation * t.virtual_stages)
    seconds = (model / rate, hardware / rate, model / rate * bubble, hardware / rate * bubble)
    return dict(zip(NAMES, seconds, strict=True))
