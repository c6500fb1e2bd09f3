"""Products of few shapes, where each new one costs: 16-bit products on a CPU.

oneDNN makes a kernel for every shape of a 16-bit product that it meets, in about a quarter of a millisecond,
and keeps the last 1,024 of them, at 0.3 to 1 MiB each. Sizes that depend on data (documents of a row, tokens
of an expert) are therefore rounded up, with zeros that change no sum, and kernels are met again. What is left
of other sizes, such as prompts', `keep_few_kernels` bounds (launch/settings.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

EVEN = 64  # queries and keys of a tile are a multiple of that


def costs_by_shape(x: Tensor) -> bool:
    """Whether each new shape of a product with `x` costs time and memory."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)


def even_rows(number: int) -> int:
    """A number of rows rounded up, by 12.5% or to 16 at most: eight sizes between two powers of two.

    >>> [even_rows(number) for number in (0, 1, 100, 300, 5000)]
    [0, 16, 112, 320, 5120]
    """
    step = max(16, 1 << max(0, number.bit_length() - 4))
    return -(-number // step) * step
