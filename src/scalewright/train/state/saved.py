"""What finished runs left, for whoever compares them: their training rows, and how far apart weights are.

deviation of a tensor = max |mine - other| / max(max |other|, floor)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.track.metrics import read_metrics

# Below this size numbers are compared absolutely: a key's bias without rotary positions has a true gradient
# of 0, so it holds nothing but rounding.
FLOOR = 1e-2


class Deviation(NamedTuple):
    """The worst relative deviation between two sets of weights, and the tensor that has it."""

    value: float
    tensor: str


def training_rows(folder: str | Path) -> list[dict[str, Any]]:
    """The training lines of a run's metrics.jsonl, by step."""
    return [row for row in read_metrics(Path(folder) / "metrics.jsonl") if row["kind"] == "train"]


def weights_deviation(mine: str | Path, other: str | Path, floor: float = FLOOR) -> Deviation:
    """How far apart the weights of two runs' newest checkpoints are; one tensor in memory at a time."""
    ours, theirs = CheckpointReader(find_checkpoint(mine)), CheckpointReader(find_checkpoint(other))
    if set(ours.names()) != set(theirs.names()):
        odd = sorted(set(ours.names()) ^ set(theirs.names()))[0]
        return Deviation(float("inf"), odd)
    worst = Deviation(0.0, "")
    for name in theirs.names():
        a, b = ours.read(name), theirs.read(name)
        if a.shape != b.shape or not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
            return Deviation(float("inf"), name)
        if a.numel() == 0:
            continue
        value = float((a - b).abs().max() / b.abs().max().clamp(min=floor))
        worst = max(worst, Deviation(value, name))
    return worst
