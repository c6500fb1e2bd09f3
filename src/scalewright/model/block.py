"""One layer: attention and MLP around a residual stream.

    sequential    x += attn(norm1(x));  x += mlp(norm2(x))            Llama, GPT-2
    parallel      x += attn(norm1(x)) + mlp(norm2(x))                 GPT-NeoX; parallel_shared: one norm

    norm_position  pre: f(norm(x))     post: norm(f(x)) (OLMo-2)      both: norm(f(norm(x))) (Gemma 2, 3)

A block is a pure function of x and the context: recomputing it gives the same bits, and it compiles and
shards alone.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalewright.model.attention import Attention
from scalewright.model.context import Context
from scalewright.model.latent_attention import LatentAttention
from scalewright.model.mlp import MLP
from scalewright.model.moe import MoE
from scalewright.model.norm import build_norm
from scalewright.spec.model import ModelSpec


class Block(nn.Module):
    """x [B, T, D] and the forward's context -> [B, T, D]."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        d = spec.hidden_size
        pre, post = spec.norm_position in ("pre", "both"), spec.norm_position in ("post", "both")
        shared = spec.residual == "parallel_shared"
        self.parallel = spec.residual != "sequential"
        self.attention_norm = build_norm(spec, d) if pre else None
        self.attention = build_attention(spec, layer)
        self.attention_post_norm = build_norm(spec, d) if post else None
        self.mlp_norm = build_norm(spec, d) if pre and not shared else None
        self.mlp = MoE(spec) if spec.is_moe(layer) else MLP(spec)
        self.mlp_post_norm = build_norm(spec, d) if post else None
        self.shared_norm = pre and shared

    def forward(self, x: Tensor, context: Context) -> Tensor:
        normed = x if self.attention_norm is None else self.attention_norm(x)
        attended = self.attention(normed, context)
        if self.attention_post_norm is not None:
            attended = self.attention_post_norm(attended)
        if not self.parallel:
            x = x + attended
        inner = x if self.mlp_norm is None else self.mlp_norm(x)
        fed: Tensor = self.mlp(normed if self.shared_norm else inner)
        if self.mlp_post_norm is not None:
            fed = self.mlp_post_norm(fed)
        return x + attended + fed if self.parallel else x + fed


def build_attention(spec: ModelSpec, layer: int) -> nn.Module:
    """The layer's attention: of heads with keys of their own, or of a latent (`spec.mla`)."""
    return LatentAttention(spec, layer) if spec.mla else Attention(spec, layer)
