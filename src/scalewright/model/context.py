"""Attention masks (causal, documents, window), rotary tables and cache: made once a forward, for all layers.

    positions, documents, cache --make_context--> Context --> every Block(x, context)

A mask is made only where one is needed. Without documents, window, ALiBi, softcap, sinks or an earlier part
in the cache, attention is plainly causal and takes the fused path. With them, [B or 1, h or 1, Tq, Tk]:

    visible(q, k) = index_k <= index_q  and  document_k == document_q  and  (index_q - index_k < window)
                                                          windows side by side:  chunk_q <= index_k

Indices count within the row, so nothing leaks from one document of a packed row into another. Windows side by
side cut each document from its first token on: chunk_q is the index at which the query's window begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.model.alibi import alibi_bias
from scalewright.model.cache import Cache
from scalewright.model.rope import rotary_tables
from scalewright.spec.model import ModelSpec

Tables = tuple[Tensor, Tensor]


@dataclass
class Context:
    """One forward's shared values. Mask None: plainly causal if `causal`, else everything is visible."""

    positions: Tensor  # int64 [B or 1, T]
    documents: Tensor | None  # int [B, T]
    rope: Tables | None  # cos, sin: fp32 [B or 1, T, 1, R/2]
    local_rope: Tables | None  # of sliding-window layers with a theta of their own (Gemma 3)
    # For full layers: added to scores, in the model's dtype; where scores are capped, bool (True = visible).
    mask: Tensor | None
    window_mask: Tensor | None  # the same for sliding-window layers
    causal: bool  # full layers without a mask
    window_causal: bool  # sliding-window layers without a mask
    cache: Cache | None = None
    temperature: Tensor | None = None  # fp32 [B or 1, T, 1, 1]: of queries in layers without RoPE (Llama 4)


def make_context(
    spec: ModelSpec,
    length: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    heads: range,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    cache: Cache | None = None,
) -> Context:
    """The context of a forward over `length` tokens; `heads` are the query heads that this rank holds."""
    before = cache.length if cache is not None else 0
    if positions is None:
        positions = torch.arange(before, before + length, device=device)[None]
    seen = cache.add_documents(documents) if cache is not None else documents
    masks = _Masks(spec, before, length, device, dtype, heads, documents, seen)
    mask, causal = masks.make(None)
    window_mask, window_causal = mask, causal
    if spec.sliding_window is not None and any(spec.window_pattern) and before + length > spec.sliding_window:
        window_mask, window_causal = masks.make(spec.sliding_window)
    rope, local_rope = rope_of(spec, positions)
    heat = temperature_of(spec, positions)
    return Context(
        positions, documents, rope, local_rope, mask, window_mask, causal, window_causal, cache, heat
    )


def rope_of(spec: ModelSpec, positions: Tensor) -> tuple[Tables | None, Tables | None]:
    """Rotary tables of full and of sliding-window layers at `positions` [B or 1, T], or None."""
    if spec.positions != "rope":
        return None, None
    rope, size = spec.rope, spec.rotary_dims
    tables = rotary_tables(positions, rope.theta, size, rope.scaling, spec.context)
    if rope.local_theta is None:
        return tables, tables
    return tables, rotary_tables(positions, rope.local_theta, size, None, spec.context)


def temperature_of(spec: ModelSpec, positions: Tensor) -> Tensor | None:
    """What queries of layers without RoPE are multiplied by at `positions` [B or 1, T], or None."""
    heat = spec.attention_temperature
    if heat is None:
        return None
    steps = ((positions.to(torch.float32) + 1.0) / heat.floor_scale).floor()
    return (1.0 + heat.attn_scale * steps.log1p())[..., None, None]


@dataclass
class _Masks:
    """The row's part of a mask is made once; each window adds its own."""

    spec: ModelSpec
    before: int  # tokens in the cache
    length: int  # tokens now
    device: torch.device
    dtype: torch.dtype
    heads: range
    documents: Tensor | None  # [B, Tq]
    seen: Tensor | None  # [B, Tk], with those in the cache

    def make(self, window: int | None) -> tuple[Tensor | None, bool]:
        """The mask for this window (None: unlimited), or None and whether to be plainly causal."""
        spec, several = self.spec, self.length > 1
        plain = window is None and self.documents is None and spec.positions != "alibi"
        if plain and not (several and (self.before or spec.writes_scores)):
            return None, several
        total = self.before + self.length
        query = torch.arange(self.before, total, device=self.device)
        key = torch.arange(total, device=self.device)
        chunks = None
        if window is not None and spec.window_chunks:
            chunks = chunk_starts(query, window, self.seen)
        visible = is_visible(query, key, window, self.documents, self.seen, chunks)
        if spec.writes_scores and spec.positions != "alibi":
            return visible, False
        return added_mask(spec, query, key, visible, self.heads, self.dtype, float("-inf")), False


def is_visible(
    query: Tensor,
    key: Tensor,
    window: int | None,
    documents: Tensor | None,
    seen: Tensor | None,
    chunks: Tensor | None = None,
) -> Tensor:
    """Bool [B or 1, 1, Tq, Tk] of queries and keys at these indices of a row.

    `documents` [B, Tq], `seen` [B, Tk]: theirs. `chunks` [B or 1, Tq]: where each query's window begins, if
    windows lie side by side; else they slide.
    """
    visible = query[:, None] >= key[None, :]
    if window is not None and chunks is None:
        visible = visible & (query[:, None] < key[None, :] + window)
    visible = visible[None, None]
    if chunks is not None:
        visible = visible & (chunks[:, None, :, None] <= key)
    if documents is not None and seen is not None:
        visible = visible & (documents[:, None, :, None] == seen[:, None, None, :])
    return visible


def added_mask(
    spec: ModelSpec,
    query: Tensor,
    key: Tensor,
    visible: Tensor,
    heads: range,
    dtype: torch.dtype,
    hidden: float,
) -> Tensor:
    """What is added to scores, [B or 1, h or 1, Tq, Tk]: ALiBi's bias or 0, and `hidden` where not visible.

    Once for all layers: from a bool mask, fused attention would make this tensor in each of them, and keep
    it for the backward.
    """
    if spec.positions == "alibi":
        bias = alibi_bias(query, key, spec.num_attention_heads, heads)
        return torch.where(visible, bias.to(dtype), hidden)
    return torch.zeros(visible.shape, dtype=dtype, device=query.device).masked_fill_(~visible, hidden)


def chunk_starts(query: Tensor, window: int, documents: Tensor | None) -> Tensor:
    """The index at which each query's window begins, int64 [B or 1, Tq], where windows lie side by side.

    `documents` [B, T]: those of the whole row, of which each begins a window.
    """
    if documents is None:
        return (query - query % window)[None]
    index = torch.arange(documents.shape[1], device=query.device)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(begins, index, 0).cummax(dim=1).values[:, query]  # of each query's document
    return query - (query - first) % window
