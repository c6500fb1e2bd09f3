"""Every operator of a forward pass on one rank; all costs are sums over this list.

    operators(model, layout, seq_len) -> (embed, layers.0.attention_norm, layers.0.attention.q, ..., loss)

    FLOPs of a step = 3 x forward        parameters = weights        activations = saved        KV = cache

The planner prices the list, the trainer's MFU sums it: they can't disagree. A matmul of [m, k] by [k, n] is
2 m n k FLOPs; an embedding lookup is none, the head is one. Attention is counted apart, over the full square
(the convention of PaLM, appendix B) and as what the causal mask and a sliding window leave of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from scalewright.spec import block
from scalewright.spec.block import Attention, Kernels, Operator, Sizes, attention_pairs, sizes
from scalewright.spec.layout import Layout, Recompute, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec
from scalewright.spec.recompute import choose

__all__ = [
    "Operator",
    "activation_bytes",
    "attention_pairs",
    "dropout_bytes",
    "flops_per_token",
    "forward_flops",
    "kv_cache_bytes",
    "layer_kinds",
    "operator_groups",
    "operators",
    "rebuilt_bytes",
    "recompute_flops",
]


def operators(
    model: ModelSpec,
    layout: Layout | None = None,
    seq_len: int | None = None,
    *,
    layers: range | None = None,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
) -> tuple[Operator, ...]:
    """Every operator of one micro-batch's forward on one rank, in order.

    `layers`: those of the rank's pipeline stage (null: all); the first stage has the embedding too, the last
    the head and the loss. `seq_len` is null for the model's context. `attention="unfused"` writes its scores
    to memory; `kernels`: whose they are, for what they keep.
    """
    layout, seq_len = layout or Layout(), seq_len or model.context
    held = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len, attention, kernels)
    found: list[Operator] = []
    if held.start == 0:
        found += block.before(model, s)
    for layer in held:
        found += block.block(model, s, layer)
    if held.stop == model.num_hidden_layers:
        found += block.after(model, s)
    return tuple(found)


def operator_groups(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    *,
    layers: range | None = None,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
) -> tuple[tuple[Operator, int], ...]:
    """`operators`, each kind of block written once with how often it comes: the same sums, much faster."""
    held = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len, attention, kernels)
    found: list[tuple[Operator, int]] = []
    if held.start == 0:
        found += [(o, 1) for o in block.before(model, s)]
    for alike in _alike(model, held):
        found += [(o, len(alike)) for o in block.block(model, s, alike[0])]
    if held.stop == model.num_hidden_layers:
        found += [(o, 1) for o in block.after(model, s)]
    return tuple(found)


@lru_cache(maxsize=256)
def layer_kinds(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """The first layer of every kind that the model has, and how many are of that kind."""
    return tuple((alike[0], len(alike)) for alike in _alike(model, range(model.num_hidden_layers)))


def _alike(model: ModelSpec, layers: Iterable[int]) -> list[list[int]]:
    """Layers whose operators differ in nothing but the number."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for layer in layers:
        kinds.setdefault(model.kind(layer), []).append(layer)
    return list(kinds.values())


# -- FLOPs ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def forward_flops(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Model FLOPs of one sequence's forward; `causal`: of attention's square, what mask and window leave."""
    groups = operator_groups(model, Layout(), seq_len)
    return sum(n * (o.flops_causal if causal else o.flops) for o, n in groups)


def flops_per_token(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Model FLOPs that training spends on a token: forward, and twice that for the backward.

    With `causal=False` this is PaLM's 6 N + 12 L H Q T (N: parameters that multiply; Chowdhery et al. 2022,
    appendix B).
    """
    return 3.0 * forward_flops(model, seq_len, causal) / seq_len


def recompute_flops(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    *,
    layers: range | None = None,
    causal: bool = True,
    recompute: Recompute | None = None,
) -> float:
    """FLOPs of one micro-batch on one rank that recomputation adds to the backward."""
    kind = layout.recompute if recompute is None else recompute
    held = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len)

    def of_block(layer: int, core_only: bool) -> float:
        return sum(
            o.flops_causal if causal else o.flops
            for o in block.block(model, s, layer)
            if o.kind == "attention" or not core_only
        )

    total = 0.0
    for alike in _alike(model, held):
        again = sum(_is_rerun(kind, layer - held.start) for layer in alike)
        if isinstance(kind, RecomputeBudget):
            choice = choose(model, s, alike[0], kind.budget)
            total += len(alike) * (choice.flops_causal if causal else choice.flops)
        elif again:
            total += again * of_block(alike[0], kind == "selective")
    return total


# -- activations ----------------------------------------------------------------------------------

Kept = Recompute | Literal["core"]


def activation_bytes(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    *,
    layers: range | None = None,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
    recompute: Kept | None = None,
) -> float:
    """Bytes that one micro-batch keeps on one rank from its forward to its backward.

    `recompute` (null: the layout's) also takes "core": Megatron's selective recomputation, which rebuilds
    attention's inside only. The layout's own "selective" keeps a block's input and its matmuls' outputs.
    """
    kind: Kept = layout.recompute if recompute is None else recompute
    held = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len, attention, kernels)
    outside = list(block.before(model, s)) if held.start == 0 else []
    outside += block.after(model, s) if held.stop == model.num_hidden_layers else []
    total = sum(o.saved for o in outside)
    for alike in _alike(model, held):
        found = tuple(block.block(model, s, alike[0]))
        again = sum(_is_rerun(kind, layer - held.start) for layer in alike)
        none, kept = sum(o.saved for o in found), _kept(model, s, alike[0], found, kind)
        total += again * kept + (len(alike) - again) * none
    return total


def rebuilt_bytes(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    *,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
) -> float:
    """Bytes that the backward holds while it rebuilds its largest block; 0 without recomputation."""
    kind = layout.recompute
    if kind == "none":
        return 0.0
    s = sizes(layout, seq_len, attention, kernels)
    rebuilt = []
    for alike in _alike(model, range(model.num_hidden_layers)):
        found = tuple(block.block(model, s, alike[0]))
        rebuilt.append(sum(o.saved for o in found) - _kept(model, s, alike[0], found, kind))
    return max(rebuilt)


def dropout_bytes(
    model: ModelSpec, layout: Layout, seq_len: int, *, attention: Attention = "unfused"
) -> float:
    """What dropout adds, all layers on one stage: masks of a byte, and a dropped copy of the scores.

    Nothing here has dropout, but trainers that were measured have: 2 s b h and 3 a s^2 b of the 34 s b h +
    5 a s^2 b bytes in Korthikanti et al. 2022 eq. 1.
    """
    s = sizes(layout, seq_len, attention)
    masks = 2.0 * s.stream * model.hidden_size
    heads = -(-model.num_attention_heads // s.tp)
    square = s.batch * s.seq_len * s.seq_len / s.cp * heads if attention == "unfused" else 0.0
    return model.num_hidden_layers * (masks + square * (1 + s.width))


def _is_rerun(kind: Kept, index: int) -> bool:
    """Whether the stage's block `index` recomputes."""
    if isinstance(kind, RecomputeEvery):
        return index % kind.every == 0
    return kind != "none"


def _kept(model: ModelSpec, s: Sizes, layer: int, found: Iterable[Operator], kind: Kept) -> float:
    """Bytes that a recomputing block keeps."""
    if kind == "core":
        return sum(o.saved - o.saved_core for o in found)
    if kind == "selective":
        return sum(o.saved_selective for o in found)
    if isinstance(kind, RecomputeBudget):
        choice = choose(model, replace(s, kernels="fused"), layer, kind.budget)
        return sum(o.saved for o in found) if choice.whole else choice.bytes
    return sum(o.saved_full for o in found)


# -- KV cache -------------------------------------------------------------------------------------


def kv_cache_bytes(
    model: ModelSpec, tokens: int, dtype_bytes: float = 2, layout: Layout | None = None
) -> float:
    """Bytes of one sequence's KV cache after `tokens`, on one rank; a sliding window keeps only its keys.

    The states of Mamba and DeltaNet layers, which don't grow with the tokens, are left out.
    """
    s = Sizes(1, 1, layout.tp if layout else 1, False, 1, 1, 1, 1, "fused")  # bytes of width 1: elements
    total = 0.0
    for alike in _alike(model, range(model.num_hidden_layers)):
        per_token = sum(o.cache for o in block.block(model, s, alike[0]))
        window = model.window(alike[0])
        total += len(alike) * per_token * min(tokens, window or tokens)
    return total * dtype_bytes
