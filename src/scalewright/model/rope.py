"""Rotary positions: each pair of a head's dimensions turns by an angle that grows with the position.

    pair (x1, x2) of a query or key at position p, frequency f:

        x1' = x1 cos(p f) - x2 sin(p f)          f_i = theta ** (-2 i / R),  i = 0 .. R/2 - 1
        x2' = x2 cos(p f) + x1 sin(p f)          R = the dimensions that turn (head_dim x fraction)

so that q(p) . k(s) depends on p - s only (Su et al. 2021, arXiv 2104.09864). Pair i is (i, i + R/2), as in GPT-NeoX
and in most Hugging Face files; where pairs are neighbours (DeepSeek), they are sorted first, queries and keys alike.
The scalings change f for contexts beyond the trained one: linear (Chen et al. 2023, 2306.15595), dynamic NTK, YaRN
(Peng et al. 2023, 2309.00071), Llama 3.1's. The tables are made once per forward, in fp32, on the device and without a
host synchronisation; they are tiny beside one layer, so nothing is kept from one forward to the next.

    B batch  T tokens  H heads  K head dim  R rotary dims
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scalewright.spec.errors import UserError
from scalewright.spec.model import RopeScaling

Tables = tuple[Tensor, Tensor]


def rotary_tables(positions: Tensor, theta: float, size: int, scaling: RopeScaling | None, context: int) -> Tables:
    """cos and sin of all angles, fp32 [B, T, 1, R/2], for positions [B, T]; `context`: the trained length."""
    frequencies, stretch = _frequencies(positions, theta, size, scaling, context)
    angles = positions.to(torch.float32)[:, :, None, None] * frequencies
    return angles.cos() * stretch, angles.sin() * stretch


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turns the first R dimensions of x [B, T, H, K] in fp32; the rest pass through; keeps x's dtype.

    `interleaved`: pairs are neighbours in x; they come out as the others do, half beside half.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    neighbours, halves = (turned[..., 0::2], turned[..., 1::2]), (turned[..., :half], turned[..., half:])
    first, second = neighbours if interleaved else halves
    parts = [first * cos - second * sin, second * cos + first * sin]  # fp32 tables lift bf16 to fp32 here
    out = torch.cat(parts, dim=-1).to(x.dtype)
    return torch.cat([out, rest], dim=-1) if rest.shape[-1] else out


def _frequencies(
    positions: Tensor, theta: float, size: int, scaling: RopeScaling | None, context: int
) -> tuple[Tensor, float]:
    """The frequencies f [R/2] and the factor that cos and sin are multiplied by."""
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    if scaling is None:
        return 1.0 / theta**exponents, 1.0
    kind, trained = scaling.kind, scaling.original_context or context
    if kind == "linear":
        return 1.0 / theta**exponents / scaling.factor, 1.0
    if kind == "dynamic":
        return _dynamic(positions, theta, size, scaling, trained, exponents), 1.0
    if kind == "llama3":
        return _llama3(1.0 / theta**exponents, scaling, trained), 1.0
    if kind == "yarn":
        return _yarn(theta, size, scaling, trained, exponents), scaling.stretch
    how = "use linear, dynamic, yarn or llama3"
    raise UserError(f"rope scaling '{kind}' is counted but doesn't run yet", "rope.scaling.kind", how)


def _dynamic(
    positions: Tensor, theta: float, size: int, scaling: RopeScaling, trained: int, exponents: Tensor
) -> Tensor:
    """NTK-aware scaling by the longest position present; a tensor all the way, so the host never waits."""
    length = (positions.max() + 1).clamp(min=trained).to(torch.float32)
    growth = scaling.factor * length / trained - (scaling.factor - 1)
    base = theta * growth ** (size / (size - 2))
    return 1.0 / base**exponents


def _llama3(frequencies: Tensor, scaling: RopeScaling, trained: int) -> Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended."""
    wavelength = 2 * math.pi / frequencies
    slow, fast = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((trained / wavelength - slow) / (fast - slow)).clamp(0, 1)  # 0: slowed, 1: kept
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _yarn(theta: float, size: int, scaling: RopeScaling, trained: int, exponents: Tensor) -> Tensor:
    """YaRN §3.2: a ramp over the dimensions, from kept (fast) to slowed by `factor` (slow)."""

    def dimension(rotations: float) -> float:  # the dimension that turns so often within the trained length
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    steps = torch.arange(size // 2, dtype=torch.float32, device=exponents.device)
    slowed = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    frequencies = 1.0 / theta**exponents
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)
