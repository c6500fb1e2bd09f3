"""How far apart the weights of two finished runs are.

deviation of a tensor = max |mine - other| / max(max |other|, floor)
"""

from __future__ import annotations

from pathlib import Path

import torch

from scalewright.checkpoint.read import CheckpointReader, find_checkpoint

# Below this size numbers are compared absolutely: a key's bias without rotary positions has a true gradient
# of 0, so it holds nothing but rounding.
FLOOR = 1e-2


def weights_deviation(mine: str | Path, other: str | Path) -> tuple[float, str]:
    """The worst deviation between two runs' newest checkpoints, and the tensor that has it; infinite where
    tensors or shapes differ.

    One tensor of each is in memory at a time.
    """
    ours, theirs = CheckpointReader(find_checkpoint(mine)), CheckpointReader(find_checkpoint(other))
    if set(ours.names()) != set(theirs.names()):
        odd = sorted(set(ours.names()) ^ set(theirs.names()))[0]
        return float("inf"), odd
    worst = (0.0, "")
    for name in theirs.names():
        a, b = ours.read(name), theirs.read(name)
        if a.shape != b.shape or not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
            return float("inf"), name
        if a.numel() == 0:
            continue
        value = float((a - b).abs().max() / b.abs().max().clamp(min=FLOOR))
        worst = max(worst, (value, name))
    return worst
