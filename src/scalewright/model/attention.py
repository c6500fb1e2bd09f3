"""Attention: queries look at the keys before them and take a weighted sum of the values.

    x [B,T,D] -> q [B,T,H,K], k, v [B,T,G,K] -> norm -> rotate -> core -> [B,T,H*K] -> o -> [B,T,D]

MHA has G = H, grouped queries (Ainslie et al. 2023, arXiv 2305.13245) G < H, multi-query G = 1. Heads are
counted from the weights' shapes when it runs, so a module whose weights were cut to some heads still works. A
head's sink (gpt-oss) is one learned score more in its softmax, of a key whose value is zero:

    out = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink))

`core` is a child without parameters: context parallelism puts another one in its place.

    B batch  T tokens  D hidden  H query heads  G key-value heads  K head dim
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.attend import Scores, widened
from scalewright.model.context import Context, Rule
from scalewright.model.gpu_rows import attend_blocks, attend_segments, takes_segments
from scalewright.model.norm import build_qk_norm
from scalewright.model.rope import Tables, rotate
from scalewright.model.rows import attend_rows
from scalewright.spec.model import ModelSpec

FEW = 64  # tokens


class Attention(nn.Module):
    """Multi-head attention of one layer: x [B, T, D] -> [B, T, D]."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        d, k = spec.hidden_size, spec.dim_per_head
        query, kv = spec.num_attention_heads * k, spec.kv_heads * k
        self.layer, self.head_dim, self.clip = layer, k, spec.clip_qkv
        self.norm_per_head = spec.qk_norm != "full"
        self.sliding = spec.window(layer) is not None
        self.turns, self.interleaved = spec.has_rope(layer), spec.rope.interleaved
        self.q = nn.Linear(d, query, bias=spec.qkv_bias)
        self.k = nn.Linear(d, kv, bias=spec.qkv_bias)
        self.v = nn.Linear(d, kv, bias=spec.qkv_bias)
        self.joined: Callable[[Tensor], Sequence[Tensor]] | None = None  # q, k and v by one product: serving sets it
        self.q_norm = build_qk_norm(spec, layer, spec.num_attention_heads)
        self.k_norm = build_qk_norm(spec, layer, spec.kv_heads)
        self.sinks = nn.Parameter(torch.zeros(spec.num_attention_heads)) if spec.attention_sinks else None
        self.core = Core(spec, self.sliding)
        self.o = nn.Linear(query, d, bias=spec.o_bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        q, k, v = self._heads(x)
        rope = context.local_rope if self.sliding else context.rope
        if self.turns and rope is not None:
            q, k = self._rotated(q, k, rope)
        if not self.turns and context.temperature is not None:
            q = (q * context.temperature).to(q.dtype)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if context.cache is not None:
            k, v = context.cache.update(self.layer, k, v)
        out = self.core(q, k, v, context, self.sinks)
        return self.o(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _rotated(self, q: Tensor, k: Tensor, rope: Tables) -> Sequence[Tensor]:
        """q and k turned; where tokens are few, calls count, and one turns both."""
        if self.joined is None or q.shape[1] > FEW:
            return rotate(q, *rope, self.interleaved), rotate(k, *rope, self.interleaved)
        both = rotate(torch.cat([q, k], dim=2), *rope, self.interleaved)
        return torch.split(both, [q.shape[2], k.shape[2]], dim=2)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, K], k and v [B, T, G, K], clipped and normed as in the model's spec."""
        q, k, v = (self.q(x), self.k(x), self.v(x)) if self.joined is None else self.joined(x)
        if self.q_norm is not None and self.k_norm is not None and not self.norm_per_head:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.clip is not None:
            q, k, v = (t.clamp(-self.clip, self.clip) for t in (q, k, v))
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None and self.norm_per_head:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v


class Core(nn.Module):
    """Scores, softmax and sum: q [B, H, Tq, K], k [B, G, Tk, K], v [B, G, Tk, W] -> [B, H, Tq, W].

    No parameters: `sinks` [H] are those of its attention. W is K but in latent attention.
    """

    def __init__(self, spec: ModelSpec, sliding: bool) -> None:
        super().__init__()
        self.scale = spec.query_scale if spec.query_scale is not None else spec.dim_per_head**-0.5
        self.softcap, self.sliding = spec.attention_softcap, sliding

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, sinks: Tensor | None = None) -> Tensor:
        view = context.sliding if self.sliding else context.full
        if view.rule is not None:
            return ruled_attention(q, k, v, view.rule, Scores(self.scale, self.softcap), sinks)
        if self.softcap is not None or sinks is not None:
            return unfused_attention(q, k, v, view.mask, self.scale, self.softcap, sinks)
        return fused_attention(q, k, v, view.mask, view.causal, self.scale)


def ruled_attention(q: Tensor, k: Tensor, v: Tensor, rule: Rule, scores: Scores, sinks: Tensor | None = None) -> Tensor:
    """Attention of rows in which a rule hides keys, by a GPU's kernels where they take it; `sinks` [H]."""
    if rule.segments is not None and takes_segments(q, scores, sinks):
        return attend_segments(q, k, v, rule.segments, scores.scale)
    if rule.blocks is not None:
        return attend_blocks(q, k, v, rule.blocks, scores, rule.slopes, sinks)
    return attend_rows(q, k, v, rule.first, scores, host=rule.host, slopes=rule.slopes, sinks=sinks)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """PyTorch's fused attention; groups are left to it where a fast backend takes them, else expanded.

    So are values narrower than keys (latent attention); the CPU's kernel gets them with zeros at their end.
    """
    grouped, width = q.shape[1] != k.shape[1], v.shape[-1]
    if q.device.type == "cpu":
        v = widened(v, q.shape[-1])
        if grouped and q.shape[2] == 1 and (mask is None or mask.shape[1] == 1):  # a group's heads as its queries
            queries = q.view(len(q), k.shape[1], -1, q.shape[3])
            return F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=scale).view(q.shape)[..., :width]
    # of a GPU's kernels flash takes groups but no mask; the memory-efficient one takes a mask but no groups
    flash = q.is_cuda and mask is None and q.dtype in (torch.bfloat16, torch.float16)
    if grouped and not (flash or q.device.type == "cpu"):
        k, v = _expand(k, q.shape[1]), _expand(v, q.shape[1])
        grouped = False
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out[..., :width]


def unfused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of a few queries whose scores no fused kernel computes: a tensor [B, H, Tq, Tk] in fp32.

    They are held within ±cap by cap tanh(score / cap) (Gemma 2, arXiv 2408.00118 §2); each head's sink [H]
    takes its share of every query's softmax (openai/gpt-oss, gpt_oss/torch/model.py: sdpa).
    """
    k, v = _expand(k, q.shape[1]), _expand(v, q.shape[1])
    scores = (q @ k.transpose(-1, -2)).float()
    scores = scores * scale if cap is None else torch.tanh(scores * (scale / cap)) * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    return scores.softmax(dim=-1)[..., : k.shape[2]].to(v.dtype) @ v


def _expand(x: Tensor, heads: int) -> Tensor:
    """[B, G, T, K] -> [B, heads, T, K], each key-value head repeated for its group of queries."""
    groups = x.shape[1]
    return x if groups == heads else x.repeat_interleave(heads // groups, dim=1)
