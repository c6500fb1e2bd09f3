"""A network and its data with one fault in it, as parts of a run's own: `{python: planted:Network}`.

    slow_rank      rank 1 multiplies more in every block        sleepy_rank    rank 1 sleeps in every block
    data_stall     every document takes long to come            tiny           every block adds a small
    host_sync      every block waits for a number of a GPU's                   number 1,500 times

The package has no code for faults: all of it is in what the user gives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCAB = 64
SLOW = 1  # the rank of a slow rank's fault


class Network(nn.Module):
    """Tokens [B, T] to logits [B, T, VOCAB], by blocks of two matrices each."""

    def __init__(self, width: int = 512, blocks: int = 4, fault: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width, fault) for _ in range(blocks))
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x)
        return logits


class Block(nn.Module):
    """A norm, a matrix, GELU, a matrix; with the fault."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.norm, self.fault = nn.LayerNorm(width), fault
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] to the same."""
        late = dist.is_initialized() and dist.get_rank() == SLOW
        if self.fault == "slow_rank" and late:
            with torch.no_grad():
                for _ in range(20):
                    x.detach() @ self.up.weight
        if self.fault == "sleepy_rank" and late:
            time.sleep(0.01)
        if self.fault == "host_sync" and float(x.detach().abs().max()) < 0:
            raise ValueError("a largest absolute value is negative")
        if self.fault == "tiny":
            small = torch.zeros(8, device=x.device)
            for _ in range(1500):
                small = small + 1
        y: Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return y


def documents(split: str, wait_s: float = 0.0) -> Iterator[list[int]]:
    """Documents of 128 tokens; each takes `wait_s` seconds to come."""
    for number in range(100_000):
        if wait_s:
            time.sleep(wait_s)
        yield [(number * 7 + 3 * place + place * place) % VOCAB for place in range(128)]
