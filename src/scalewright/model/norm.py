"""Normalisation over the hidden dimension, computed in fp32 whatever the dtype that passes through.

RMSNorm       x / sqrt(mean(x^2) + eps) * w            (Zhang and Sennrich 2019, arXiv 1910.07467)
  plus one    x / sqrt(mean(x^2) + eps) * (1 + w)      Gemma: the weight starts at zero
  l2          x / sqrt(mean(x^2) + eps)                Llama 4: of queries and keys, in layers with RoPE
LayerNorm     (x - mean(x)) / sqrt(var(x) + eps) * w + b
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.spec.model import ModelSpec


class RMSNorm(nn.Module):
    """Root-mean-square norm of the last dimension, with or without a weight; shape and dtype stay."""

    def __init__(self, size: int, eps: float, plus_one: bool = False, weight: bool = True) -> None:
        super().__init__()
        self.size, self.eps, self.plus_one = size, eps, plus_one
        first = torch.zeros(size) if plus_one else torch.ones(size)
        self.weight = nn.Parameter(first) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or not self.plus_one:
            return F.rms_norm(x, (self.size,), self.weight, self.eps)
        weight = self.weight.float() + 1.0  # in bf16 the one would swallow small weights
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer norm of the last dimension, with or without a weight and a bias; shape and dtype stay."""

    def __init__(self, size: int, eps: float, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.ones(size)) if weight else None
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)


def build_norm(spec: ModelSpec, size: int) -> nn.Module:
    """The model's kind of norm over `size` numbers."""
    if spec.norm_type.startswith("rmsnorm"):
        return RMSNorm(size, spec.norm_eps, plus_one=spec.norm_type == "rmsnorm_plus_one")
    return LayerNorm(size, spec.norm_eps, *spec.norm_shapes)


def build_qk_norm(spec: ModelSpec, layer: int, heads: int) -> nn.Module | None:
    """The norm of a layer's queries, or keys, of so many heads: over all of them or over each; or None."""
    if spec.qk_norm is None:
        return None
    if spec.qk_norm == "l2":
        return RMSNorm(spec.dim_per_head, spec.norm_eps, weight=False) if spec.has_rope(layer) else None
    return build_norm(spec, spec.dim_per_head * (heads if spec.qk_norm == "full" else 1))
