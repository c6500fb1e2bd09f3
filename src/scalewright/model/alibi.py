"""ALiBi: attention scores fall with the distance, at a rate of each head's own; no positions elsewhere.

    score(q, k) = q . k / sqrt(K) - slope_h (p_q - p_k)      slope_h = 2 ** (-8 h / H),  h = 1 .. H

(Press et al. 2021, arXiv 2108.12409.) For H not a power of two, the slopes of the next lower power come first
and every second one of the next higher power fills up, as in the authors' code and in BLOOM.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head, in the order of the heads."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two up to `heads`
    slopes = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    finer = [2.0 ** (-4.0 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return slopes + finer[: heads - power]


def local_slopes(heads: int, local: range, device: torch.device) -> Tensor:
    """The slopes of the heads in `local` out of `heads`, fp32 [h]; made on the device."""
    values = alibi_slopes(heads)[local.start : local.stop]
    return torch.cat([torch.full((1,), s, dtype=torch.float32, device=device) for s in values])


def alibi_bias(query: Tensor, key: Tensor, slopes: Tensor) -> Tensor:
    """The bias to add to the scores of queries [Q] and keys [T] at these indices, fp32 [1, h, Q, T].

    Indices within the row do: inside one document their difference is the distance.
    """
    distance = (query[:, None] - key[None, :]).to(torch.float32)
    return -slopes[None, :, None, None] * distance
