"""Every operator of a forward pass on one rank; all costs are sums over this list.

    operators(model, layout, seq_len) -> (embed, layers.0.attention_norm, layers.0.attention.q, ..., loss)

    FLOPs of a step = 3 x forward        parameters = weights        activations = saved

The planner prices the list, the trainer's MFU sums it, so that both agree. A matmul of [m, k] by [k, n] is
2 m n k FLOPs; an embedding lookup is none, the head is one. Attention has two counts: over the full square
(the convention of PaLM, appendix B), and under the causal mask and a sliding window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from scalewright.spec import block
from scalewright.spec.layout import Layout, Recompute, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec
from scalewright.spec.primitives import Attention, Kernels, Operator, Sizes, sizes
from scalewright.spec.recompute_budget import choose


def operators(
    model: ModelSpec,
    layout: Layout | None = None,
    seq_len: int | None = None,
    *,
    layers: range | None = None,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
    mtp: bool = False,
) -> tuple[Operator, ...]:
    """Every operator of one micro-batch's forward on one rank, in order.

    `layers`: those of the rank's pipeline stage (null: all); the first stage has the embedding too, the last
    the head and the loss, and with `mtp` the modules of multi-token prediction, which training alone runs.
    `seq_len` is null for the model's context. `attention="unfused"` writes its scores to memory; `kernels`:
    which kernels run, as they keep different tensors.
    """
    layers = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout or Layout(), seq_len or model.context, attention, kernels)
    first, last = _ends(model, s, layers, mtp)
    return (*first, *(operator for layer in layers for operator in block.block(model, s, layer)), *last)


def _ends(model: ModelSpec, s: Sizes, layers: range, mtp: bool) -> tuple[list[Operator], list[Operator]]:
    """The operators before a stage's blocks, and those behind: of the first stage, and of the last."""
    first = list(block.before(model, s)) if layers.start == 0 else []
    if layers.stop != model.num_hidden_layers:
        return first, []
    depths = range(model.mtp_layers if mtp else 0)
    return first, [*block.after(model, s), *(o for depth in depths for o in block.multi_token(model, s, depth))]


def operator_groups(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    *,
    layers: range | None = None,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
    mtp: bool = False,
) -> tuple[tuple[Operator, int], ...]:
    """`operators`, each kind of block once with its number of layers: the same sums, much faster."""
    layers = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len, attention, kernels)
    first, last = _ends(model, s, layers, mtp)
    blocks = [(o, len(group)) for group in by_kind(model, layers) for o in block.block(model, s, group[0])]
    return (*((o, 1) for o in first), *blocks, *((o, 1) for o in last))


@lru_cache(maxsize=256)
def layer_kinds(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """The first layer of every kind that the model has, and how many are of that kind."""
    return tuple((group[0], len(group)) for group in by_kind(model, range(model.num_hidden_layers)))


def by_kind(model: ModelSpec, layers: Iterable[int]) -> list[list[int]]:
    """Layers by kind: within a group, operators differ only in the layer's number."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for layer in layers:
        kinds.setdefault(model.kind(layer), []).append(layer)
    return list(kinds.values())


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
    layers = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len, attention, kernels)
    first, last = _ends(model, s, layers, mtp=False)
    total = sum(o.saved for o in (*first, *last))
    for group in by_kind(model, layers):
        ops = tuple(block.block(model, s, group[0]))
        rerun = sum(is_rerun(kind, layer - layers.start) for layer in group)
        none, kept = sum(o.saved for o in ops), _kept(model, s, group[0], ops, kind)
        total += rerun * kept + (len(group) - rerun) * none
    return total


def dropout_bytes(model: ModelSpec, layout: Layout, seq_len: int, *, attention: Attention = "unfused") -> float:
    """Bytes that dropout adds, all layers on one stage: masks of a byte, and a dropped copy of the scores.

    Operators here have no dropout, measured trainers do: 2 s b h and 3 a s^2 b of the 34 s b h +
    5 a s^2 b bytes in Korthikanti et al. 2022 eq. 1.
    """
    s = sizes(layout, seq_len, attention)
    masks = 2.0 * s.stream * model.hidden_size
    heads = -(-model.num_attention_heads // s.tp)
    square = s.batch * s.seq_len * s.seq_len / s.cp * heads if attention == "unfused" else 0.0
    return float(model.num_hidden_layers * (masks + square * (1 + s.width)))


def is_rerun(kind: Kept, index: int) -> bool:
    """Whether the stage's block `index` recomputes."""
    if isinstance(kind, RecomputeEvery):
        return index % kind.every == 0
    return kind != "none"


def _kept(model: ModelSpec, s: Sizes, layer: int, ops: Iterable[Operator], kind: Kept) -> float:
    if kind == "core":
        return sum(o.saved - o.saved_core for o in ops)
    if kind == "selective":
        return sum(o.saved_selective for o in ops)
    if isinstance(kind, RecomputeBudget):
        choice = choose(model, replace(s, kernels="fused"), layer, kind.budget)
        return sum(o.saved for o in ops) if choice.whole else choice.bytes
    return sum(o.saved_full for o in ops)
