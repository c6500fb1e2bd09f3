"""Multi-head latent attention (MLA): keys and values of all heads are made from one small vector a token.

    x [B,T,D] -> q_down -> norm -> q_up [B,T,H,N+R]                                  or x -> q [B,T,H,N+R]
              -> kv_down [B,T,L+R] -> c = norm(the first L), r = the last R
                                      c -> kv_up [B,T,H,N+V]: N of a key, V of a value

    query [its N, rotate(its R)]     key [its N, rotate(r), the same of all heads]     value [its V]

(DeepSeek-AI 2024, arXiv 2405.04434 §2.1, eq. 9-19.) Queries and keys turn in R dimensions of their own, so
that c has no position and a cache holds c and rotate(r) alone: L + R numbers a token in place of 2 H K. A
later token reads them as they are, since

    q_N . (W_k c) = (q_N W_k) . c          sum of w_s (W_v c_s) = W_v (sum of w_s c_s)

which is attention of H queries [L+R] to one key [c, rotate(r)] and its value c (ibid., §2.1.2).

    B batch  T tokens  D hidden  H heads  N dims without and R with positions  V of a value  L latent
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalewright.model.attention import Core
from scalewright.model.context import Context
from scalewright.model.norm import RMSNorm
from scalewright.model.rope import Tables, rotate
from scalewright.spec.model import ModelSpec

NORM_EPS = 1e-6  # of both latents, in every published model, whatever the other norms add


class LatentAttention(nn.Module):
    """Latent attention of one layer: x [B, T, D] -> [B, T, D]."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        mla, d, heads = spec.mla, spec.hidden_size, spec.num_attention_heads
        assert mla is not None, "a layer with plain attention"
        self.layer, self.mla = layer, mla
        self.sliding = spec.window(layer) is not None
        self.turns, self.interleaved = spec.has_rope(layer), spec.rope.interleaved
        query, rank = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank
        self.q = nn.Linear(d, query, bias=False) if rank is None else None
        self.q_down = nn.Linear(d, rank, bias=spec.qkv_bias) if rank is not None else None
        self.q_down_norm = RMSNorm(rank, NORM_EPS) if rank is not None else None
        self.q_up = nn.Linear(rank, query, bias=False) if rank is not None else None
        self.kv_down = nn.Linear(d, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=spec.qkv_bias)
        self.kv_down_norm = RMSNorm(mla.kv_lora_rank, NORM_EPS)
        self.latents = nn.Identity()  # where tensor parallelism hands c and r to the ranks of other heads
        self.kv_up = nn.Linear(mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim), bias=False)
        self.halves: tuple[Tensor, Tensor] | None = None  # `to_heads`, where weights stay as they are: serving sets it
        self.core = Core(spec, self.sliding)
        self.o = nn.Linear(heads * mla.v_head_dim, d, bias=spec.o_bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rope = context.local_rope if self.sliding else context.rope
        q, (c, r) = self._queries(x, rope), self._latents(x, rope)
        cache, first = context.cache, context.cache is None or context.cache.length == 0
        latents = (c[:, None], r[:, None])
        latents = latents if cache is None else cache.update(self.layer, *latents)
        out = self._expanded(q, c, r, context) if first else self._absorbed(q, *latents, context)
        return self.o(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _queries(self, x: Tensor, rope: Tables | None) -> Tensor:
        """[B, T, H, N + R], the last R turned."""
        if self.q_down is not None and self.q_down_norm is not None and self.q_up is not None:
            flat = self.q_up(self.q_down_norm(self.q_down(x)))
        else:
            assert self.q is not None
            flat = self.q(x)
        sizes = [self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim]
        plain, turning = torch.split(torch.unflatten(flat, -1, (-1, sum(sizes))), sizes, dim=-1)
        return torch.cat([plain, self._turned(turning, rope)], dim=-1)

    def _latents(self, x: Tensor, rope: Tables | None) -> tuple[Tensor, Tensor]:
        """c [B, T, L] and r [B, T, R], turned."""
        sizes = [self.mla.kv_lora_rank, self.mla.qk_rope_head_dim]
        c, r = torch.split(self.kv_down(x), sizes, dim=-1)
        joined: Tensor = self.latents(torch.cat([self.kv_down_norm(c), r], dim=-1))
        c, r = torch.split(joined, sizes, dim=-1)
        return c, self._turned(r[:, :, None], rope)[:, :, 0]

    def _turned(self, x: Tensor, rope: Tables | None) -> Tensor:
        return rotate(x, *rope, self.interleaved) if self.turns and rope is not None else x

    def _expanded(self, q: Tensor, c: Tensor, r: Tensor, context: Context) -> Tensor:
        """Attention with every head's own keys and values; [B, H, T, V]."""
        sizes = [self.mla.qk_nope_head_dim, self.mla.v_head_dim]
        plain, v = torch.split(torch.unflatten(self.kv_up(c), -1, (-1, sum(sizes))), sizes, dim=-1)
        k = torch.cat([plain, r[:, :, None].expand(-1, -1, plain.shape[2], -1)], dim=-1)
        return self.core(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), context)  # type: ignore[no-any-return]

    def to_heads(self) -> tuple[Tensor, Tensor]:
        """What makes each head's keys and values of a latent: [H, N, L] and [H, L, V]."""
        sizes = [self.mla.qk_nope_head_dim, self.mla.v_head_dim]
        to_key, to_value = torch.split(torch.unflatten(self.kv_up.weight, 0, (-1, sum(sizes))), sizes, dim=1)
        return to_key, to_value.transpose(1, 2)

    def _absorbed(self, q: Tensor, c: Tensor, r: Tensor, context: Context) -> Tensor:
        """The same from the latents of all tokens so far, [B, 1, S, L] and [B, 1, S, R]; [B, H, T, V]."""
        to_key, to_value = self.to_heads() if self.halves is None else self.halves
        plain, turned = torch.split(q, [self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim], dim=-1)
        by_latent = torch.einsum("bthn,hnl->bhtl", plain, to_key)
        queries = torch.cat([by_latent, turned.transpose(1, 2)], dim=-1)
        mixed = self.core(queries, torch.cat([c, r], dim=-1), c, context)
        return torch.einsum("bhtl,hlv->bhtv", mixed, to_value)
