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


def alibi_bias(query_index: Tensor, key_index: Tensor, heads: int, local: range) -> Tensor:
    """The bias to add to the scores, fp32 [1, h, Tq, Tk], for the heads in `local` out of `heads`.

    Indices within the row do: inside one document their difference is the distance.
    """
    values = alibi_slopes(heads)[local.start : local.stop]
    slopes = torch.cat([torch.full((1,), s, dtype=torch.float32, device=query_index.device) for s in values])
    distance = (query_index[:, None] - key_index[None, :]).to(torch.float32)
    return -slopes[None, :, None, None] * distance
