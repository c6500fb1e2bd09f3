"""MXFP4, in which gpt-oss publishes its experts: four bits a number, and an exponent for each 32 of them.

    blocks  uint8 [..., in / 32, 16]     two numbers a byte, the low half first
    scales  uint8 [..., in / 32]         the exponent, + 127

    number = e2m1(four bits) * 2 ** (scale - 127)      e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, or one of -0 to -6

(OCP Microscaling Formats (MX) v1.0, 2023, §5.3.3 and §5.4.1.) They are read, and written as plain numbers:
each is one of bfloat16, exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP, BYTES = 32, 16  # numbers that share a scale, and their bytes
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks uint8 [..., G, 16], scales uint8 [..., G] -> bfloat16 [..., 32 G]."""
    table = torch.tensor([*E2M1, *(-number for number in E2M1)])
    halves = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)  # [..., G, 32]
    numbers = torch.ldexp(table[halves.int()], scales[..., None].int() - 127)
    return numbers.flatten(-2).to(torch.bfloat16)
