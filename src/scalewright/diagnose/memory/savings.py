"""Bytes that changes would save of a snapshot's peak, by its own curves: the largest of what is left.

    level  = parameters + gradients + optimizer + activations + communication + loss + temporary + other
    saved  = max(level) - max(level - (1 - kept) · categories that the change touches)

    loss in 8 chunks         loss · 1/8               half the micro-batch    activations, loss · 1/2
    full recomputation       activations · 1/layers   ZeRO over 8 ranks    1: optimizer · 1/8, 2: gradients,
    fused optimizer          its temporaries · 0                          3: parameters

A peak moves to where the next largest is, so that savings don't add up. `layers` is how often the model's
lines allocated what the peak holds; with recomputation one layer's activations are there at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.memory.blocks import Life, levels
from scalewright.diagnose.memory.categories import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    LOSS,
    OPTIMIZER,
    OTHER,
    PARAMETERS,
    TEMPORARY,
    Judged,
)
from scalewright.diagnose.memory.stacks import STEP

CHUNKS, RANKS = 8, 8
STEP_TEMPORARY = len(CATEGORIES)  # the optimizer's part of the temporaries: a group of its own in the curves
A_LINE = 0.02  # of the activations: a line of the model that holds less doesn't tell the layers


@dataclass(frozen=True)
class Saving:
    """A change: a word for it, how to make it, and bytes of the peak with and saved by it."""

    change: str
    how: str
    peak: int
    saves: int

    def dump(self) -> dict[str, object]:
        """The keys of `diagnose --json`."""
        return {"change": self.change, "how": self.how, "peak_bytes": self.peak, "saves_bytes": self.saves}


def curves(blocks: Sequence[Life], judged: Judged, events: int, before: int) -> np.ndarray:
    """Bytes of every category, and of the optimizer's temporaries, after every event.

    int64 [categories + 1, events + 1]. `before`: what was allocated when the trace began; more than the
    blocks from then is `other`.
    """
    group = [
        STEP_TEMPORARY if kind == TEMPORARY and stack.phase == STEP else kind
        for kind, stack in zip(judged.category, judged.stacks, strict=True)
    ]
    result = levels(blocks, group, len(CATEGORIES) + 1, events)
    result[OTHER] += before - int(result[:, 0].sum())
    return result


def savings(level: np.ndarray, layers: int = 0, sharded: bool = False) -> list[Saving]:
    """Changes that save something, the largest first.

    `level`: bytes of every category over time, int64 [categories + 1, n]. `layers`: of the model, 0 where
    that isn't known. `sharded`: whether states are sharded already.
    """
    options: list[tuple[str, str, dict[int, float]]] = [
        ("loss in chunks", f"compute the loss in {CHUNKS} chunks of the sequence", {LOSS: 1 / CHUNKS}),
        ("micro-batch", "half the micro-batch", {ACTIVATIONS: 0.5, LOSS: 0.5}),
        ("fused optimizer", "a fused optimizer (fused=True), or foreach=False", {STEP_TEMPORARY: 0.0}),
    ]
    if layers > 1:
        options.append(("recomputation", "recompute each layer's activations", {ACTIVATIONS: 1 / layers}))
    shards: dict[int, float] = {}
    for stage, kind in enumerate((OPTIMIZER, GRADIENTS, PARAMETERS), 1):
        shards = {**shards, kind: 1 / RANKS}
        if not sharded:
            options.append((f"zero {stage}", f"ZeRO stage {stage} over {RANKS} ranks", shards))
    total = level.sum(axis=0)
    peak = int(total.max())
    result = []
    for change, how, kept in options:
        left = total - sum(((1 - share) * level[kind] for kind, share in kept.items()), np.zeros(len(total)))
        lower = int(left.max())
        if lower < peak:
            result.append(Saving(change, how, lower, peak - lower))
    return sorted(result, key=lambda saving: -saving.saves)


def layers_of(blocks: Sequence[Life], judged: Judged, peak_event: int) -> int:
    """How often the model's lines allocated the activations of the peak: the least of lines that matter."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for block, kind, stack in zip(blocks, judged.category, judged.stacks, strict=True):
        if kind == ACTIVATIONS and block.alive(peak_event - 1):
            count[stack.line] += 1
            size[stack.line] += block.size
    whole = sum(size.values())
    return min((count[line] for line, held in size.items() if held >= A_LINE * whole), default=0)
