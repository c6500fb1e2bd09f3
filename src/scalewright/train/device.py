"""Which device a rank computes on: its own, by its number on this machine."""

from __future__ import annotations

import torch

from scalewright.launch.rank import RankContext
from scalewright.spec.errors import UserError


def own_device(kind: str, context: RankContext) -> torch.device:
    """This rank's own device. Some starters show each rank one GPU (srun --gpus-per-task=1)."""
    if kind != "cuda":
        return torch.device(kind)
    count = torch.cuda.device_count()
    if context.local_rank < count:
        return torch.device(kind, context.local_rank)
    if count == 1:
        return torch.device(kind, 0)
    raise UserError(
        f"rank {context.rank} is number {context.local_rank} (from 0) of a node that shows it {count} GPUs",
        "device",
        f"start {count} ranks a node, or show each rank its own GPU",
    )
