"""A network with a fault that only a GPU has, as a run's own part: `{python: planted:Network, fault: …}`.

host_sync   every block asks the device for a number and waits
storm       every block adds a small number 300 times: kernels of microseconds
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCAB = 512


class Network(nn.Module):
    """Tokens [B, T] to logits [B, T, VOCAB], by residual blocks."""

    def __init__(self, width: int = 1024, blocks: int = 8, fault: str = "") -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB)
        self.blocks = nn.ModuleList(Block(width, fault) for _ in range(blocks))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x)
        return logits


class Block(nn.Module):
    """A norm and two matrices; with the fault."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.norm, self.fault = nn.LayerNorm(width), fault
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] to the same."""
        if self.fault == "host_sync" and float(x.detach().abs().max()) < 0:
            raise ValueError("a norm is negative")
        if self.fault == "storm":
            small = torch.zeros(8, device=x.device)
            for _ in range(300):
                small = small + 1
        y: Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return y
