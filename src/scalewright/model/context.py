"""What tokens see (causal, documents, window), rotary tables and cache: made once a forward, for all layers.

    positions, documents, cache --make_context--> Context --> every Block(x, context)

    plain rows                               causal                     PyTorch's own attention
    documents, windows, ALiBi, caps, sinks   a Rule: T numbers a row    rows.py, gpu_rows.py
    a few queries after a cache, with them   a mask [.., Tq, Tk]        PyTorch's own

    visible(q, k) = index_k <= index_q  and  document_k == document_q  and  (index_q - index_k < window)
                                                          windows side by side:  chunk_q <= index_k

Indices count within the row, so nothing leaks from one document of a packed row into another (visible.py).
Windows side by side cut each document from its first token on: chunk_q is where the query's window begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scalewright.model.cache import Cache
from scalewright.model.gpu_rows import HALF, Packing, Segments, block_mask, bounds_of, has_varlen
from scalewright.model.rope import Tables, rotary_tables
from scalewright.model.visible import added_mask, first_keys, is_visible, local_slopes
from scalewright.spec.model import ModelSpec

FEW = 64  # queries after a cache, for whose scores a mask is small


@dataclass(frozen=True)
class Rule:
    """What the queries of whole rows see, in numbers of a row's length."""

    first: Tensor  # int64 [B or 1, T], each token's first visible key
    host: Tensor | None = None  # the same in host memory, where it is there without waiting
    slopes: Tensor | None = None  # ALiBi's, fp32 [h]
    segments: Segments | None = None  # the same for FlashAttention
    blocks: Any = None  # the same for FlexAttention, where blocks are compiled


class View(NamedTuple):
    """What queries of one kind of layer see: by its rule or mask; without, keys up to their own or all."""

    causal: bool = False
    rule: Rule | None = None
    # Added to scores, in the model's dtype; where scores are capped, bool (True = visible).
    mask: Tensor | None = None


@dataclass
class Context:
    """One forward's shared values."""

    positions: Tensor  # int64 [B or 1, T]
    documents: Tensor | None  # int [B, T]
    rope: Tables | None  # cos, sin: fp32 [B or 1, T, 1, R/2]
    local_rope: Tables | None  # of sliding-window layers with a theta of their own (Gemma 3)
    full: View
    sliding: View  # of sliding-window layers
    cache: Cache | None = None
    temperature: Tensor | None = None  # fp32 [B or 1, T, 1, 1]: of queries in layers without RoPE (Llama 4)


def make_context(
    spec: ModelSpec,
    x: Tensor,
    length: int,
    heads: range,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    cache: Cache | None = None,
    packing: Packing | None = None,
    compiled: bool = False,
) -> Context:
    """The context of a forward over x [B, T, D], rows of `length` tokens; `heads`: the query heads of this rank.

    `packing`: the documents as the host has them, without which a GPU's kernels can't skip what they hide.
    `compiled`: the blocks are.
    """
    before = cache.length if cache is not None else 0
    if positions is None:
        positions = torch.arange(before, before + length, device=x.device)[None]
    seen = cache.add_documents(documents) if cache is not None else documents
    seen = seen if documents is not None else None
    views = _Views(spec, before, length, len(x), x.device, x.dtype, heads, seen, packing, cache is not None, compiled)
    full, sliding = views.of_layers()
    rope, local_rope = rope_of(spec, positions)
    heat = temperature_of(spec, positions)
    return Context(positions, documents, rope, local_rope, full, sliding, cache, heat)


def views_after(spec: ModelSpec, before: int, length: int, x: Tensor, heads: range) -> tuple[View, View]:
    """What `length` tokens behind `before` cached ones of their row see: in layers without a window, and with one.

    `x`: a tensor of the forward, for its device and dtype; `heads`: the query heads of this rank.
    """
    return _Views(spec, before, length, 1, x.device, x.dtype, heads, None, None, True, False).of_layers()


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
    if (heat := spec.attention_temperature) is None:
        return None
    steps = ((positions.to(torch.float32) + 1.0) / heat.floor_scale).floor()
    return (1.0 + heat.attn_scale * steps.log1p())[..., None, None]


@dataclass
class _Views:
    spec: ModelSpec
    before: int  # tokens in the cache
    length: int  # tokens now
    batch: int
    device: torch.device
    dtype: torch.dtype
    heads: range
    documents: Tensor | None  # [B, before + length]
    packing: Packing | None
    cached: bool
    compiled: bool

    def of_layers(self) -> tuple[View, View]:
        """Those of layers without a window, and with one."""
        spec, full = self.spec, self.make(None)
        if spec.sliding_window is None or not any(spec.window_pattern):
            return full, full
        return full, self.make(spec.sliding_window) if self.before + self.length > spec.sliding_window else full

    def make(self, window: int | None) -> View:
        """What layers of this window (None: unlimited) see."""
        spec, several = self.spec, self.length > 1
        capped, alibi = spec.attention_softcap is not None, spec.positions == "alibi"
        plain = window is None and self.documents is None and not alibi
        if plain and not (several and (self.before or capped or spec.attention_sinks)):
            return View(causal=several)
        index = torch.arange(self.before + self.length, device=self.device)
        first = first_keys(index, self.documents, window, spec.window_chunks)
        slopes = local_slopes(spec.num_attention_heads, self.heads, self.device) if alibi else None
        if self.cached and self.length <= FEW:
            query, first = index[self.before :], first[:, self.before :]
            if capped and not alibi:
                return View(mask=is_visible(query, index, first))
            return View(mask=added_mask(query, index, first, slopes, self.dtype, float("-inf")))
        host, segments, blocks = self._host(window), None, None
        if self.device.type == "cuda" and not self.cached:
            if not (alibi or capped or spec.attention_sinks) and self.dtype in HALF:
                segments = self._segments(window, host)
            if segments is None and self.compiled:
                blocks = block_mask(first)
        return View(rule=Rule(first, host, slopes, segments, blocks))

    def _host(self, window: int | None) -> Tensor | None:
        """First visible keys in host memory; on a CPU they are there already."""
        if self.device.type == "cpu" or (self.documents is not None and self.packing is None):
            return None
        documents = torch.from_numpy(self.packing.documents) if self.packing is not None else None
        index = torch.arange(self.before + self.length, device="cpu")
        return first_keys(index, documents, window, self.spec.window_chunks)

    def _segments(self, window: int | None, host: Tensor | None) -> Segments | None:
        """Documents, or windows side by side, as FlashAttention takes them."""
        if host is None or not has_varlen():
            return None
        if window is not None and self.spec.window_chunks:
            ends, longest = bounds_of(host.expand(self.batch, -1).numpy())
            return Segments(torch.from_numpy(ends).pin_memory().to(self.device, non_blocking=True), longest)
        if self.documents is not None and self.packing is not None:
            return self.packing.segments._replace(window=window)
        bounds = torch.arange(self.batch + 1, dtype=torch.int32, device=self.device) * self.length
        return Segments(bounds, self.length, window)
