"""`torch.compile`, one block at a time: blocks are alike, so the compiler works once for all of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def apply_compile(blocks: Iterable[nn.Module], backend: str = "inductor", *, forward_only: bool = False) -> None:
    """Compiles every block's call, in place; `forward_only`: later wrappers of the forward stay outside."""
    for block in blocks:
        if forward_only:
            block.forward = torch.compile(block.forward, backend=backend)
        else:
            block.compile(backend=backend)
