"""`torch.compile`, one block at a time: blocks are alike, so the compiler works once for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def apply_compile(blocks: Iterable[nn.Module], backend: str = "inductor") -> None:
    """Compiles every block's forward, in place."""
    for block in blocks:
        block.compile(backend=backend)
