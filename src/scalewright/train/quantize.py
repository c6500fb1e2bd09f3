"""fp32 in a byte: block-wise quantisation to levels that lie closer together near zero.

    256 neighbours of the flattened tensor     scale = their largest magnitude
    each                                       the nearest level of x / scale, by its number

    levels     10^-e (1 + 9 (j + 1) / 2^k) / 10,  j = 0 .. 2^k - 1     e leading zeros leave k bits
    signed     e + k = 6:  0, and 127 of either sign                   exp_avg
    unsigned   e + k = 7:  0, and 255                                  exp_avg_sq

Dynamic tree quantisation (Dettmers et al. 2022, arXiv 2110.02861, §1.3 and §2.1): seven decades, with up to
128 steps in the first. Steps end on their upper border here, so that 1 and -1 are levels: a block's largest
number is kept exactly, and numbers that were quantised are quantised to the same bytes again. Checkpoints
rely on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalewright.spec.optimizers import OPTIMIZERS

BLOCK = OPTIMIZERS["adamw_8bit"].block
LEAST_SCALE = 2.0**-100  # a block below it counts as zeros: scale times the lowest level is a normal number


def levels(signed: bool) -> list[float]:
    """All levels, ascending: 255 signed or 256 unsigned ones."""
    bits = 6 if signed else 7
    up = [
        (1 + 9 * (j + 1) / 2 ** (bits - e)) / 10 * 10.0**-e for e in range(bits, -1, -1) for j in range(2 ** (bits - e))
    ]
    return [*([-level for level in reversed(up)] if signed else []), 0.0, *up]


class Bytes:
    """Quantisation to a table of levels on a device."""

    def __init__(self, signed: bool, device: torch.device) -> None:
        table = levels(signed)
        self.zero = table.index(0.0)
        self.levels = torch.tensor(table, dtype=torch.float32, device=device)
        self.borders = (self.levels[1:] + self.levels[:-1]) / 2

    def pack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 codes [n] and fp32 scales [blocks(n)] of finite fp32 x [n]."""
        rows = _rows(x)
        largest = torch.linalg.vector_norm(rows, float("inf"), dim=1)
        scales = torch.where(largest < LEAST_SCALE, 0.0, largest)
        rows = rows / torch.where(scales > 0, scales, float("inf"))[:, None]
        codes = torch.bucketize(rows, self.borders, out_int32=True)
        return codes.to(torch.uint8).view(-1)[: len(x)], scales

    def unpack(self, codes: Tensor, scales: Tensor) -> Tensor:
        """fp32 [n] of codes [n] and their scales."""
        x = torch.index_select(self.levels, 0, codes.to(torch.int32))
        whole = len(x) // BLOCK
        x[: whole * BLOCK].view(-1, BLOCK).mul_(scales[:whole, None])
        if whole < len(scales):
            x[whole * BLOCK :].mul_(scales[-1])
        return x


def blocks(elements: int) -> int:
    """The number of scales of so many numbers."""
    return -(-elements // BLOCK)


def _rows(x: Tensor) -> Tensor:
    """[blocks, BLOCK], the last one filled up with zeros."""
    missing = -len(x) % BLOCK
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(-1, BLOCK)
