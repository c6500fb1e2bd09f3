"""A user's loss that only a layout computes wrongly: rank 1 weighs its tokens a little more."""

from __future__ import annotations

from torch import Tensor

from parts import summed


def loss(logits: Tensor, targets: Tensor, more: float) -> Tensor:
    """The sum over counted tokens, on rank 1 times 1 + `more`."""
    import torch

    second = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
    return summed(logits, targets, 1.0 + more if second else 1.0)
