"""The outputs that a block keeps under a memory budget: a small knapsack over its operators.

    keep:      a set S of matrix products and attention cores
    maximise   sum of FLOPs(S)                                        not redone in the backward
    so that    bytes(block input) + sum of bytes(S) <= budget x bytes that `none` keeps

A kept output costs its bytes; everything else (norms, rotary turns, activations) is redone from the kept ones and costs
memory traffic, hardly FLOPs. A block has at most some fifteen products, so that extending a Pareto front of sets
(bytes, FLOPs) gives the exact optimum. Budget 1 keeps all that `none` keeps, 0 the block's input alone (`full`). The
trainer executes (`parallel/recompute.py`) the same choice that the planner prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scalewright.spec import block
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.primitives import Operator, Sizes, sizes


@dataclass(frozen=True, slots=True)
class Choice:
    """The outputs that a block keeps for one micro-batch on one rank, and the FLOPs that it redoes."""

    kept: frozenset[str]  # operators within the block whose outputs are kept: `attention.q`, `mlp.up`
    whole: bool  # keeps the same as `none`: no operator is redone
    bytes: float  # kept, with the block's input
    none_bytes: float  # kept under `none`
    flops: float  # of the products that are redone; attention over the full square
    flops_causal: float  # the same under causal mask and sliding window


def keep(model: ModelSpec, layout: Layout, seq_len: int, budget: float, layer: int = 0) -> Choice:
    """The choice for block `layer` whose bytes are at most `budget` (0 to 1) times those of `none`."""
    return choose(model, sizes(layout, seq_len), layer, budget)


def products(model: ModelSpec, layer: int = 0) -> tuple[str, ...]:
    """The names of a block's matrix products in order, without attention's core."""
    ops = block.block(model, sizes(Layout(), 1), layer)
    return tuple(_name(o) for o in ops if o.flops and o.kind not in ("attention", "scan"))


def least_budget(model: ModelSpec, layout: Layout, seq_len: int) -> float:
    """The share of the blocks' inputs in the bytes that `none` keeps: the lowest budget above 0."""
    layers = {model.kind(n): n for n in range(model.num_hidden_layers)}
    choices = [choose(model, sizes(layout, seq_len), layer, 0.0) for layer in layers.values()]
    return max(choice.bytes / choice.none_bytes for choice in choices)


_Set = tuple[float, float, tuple[Operator, ...]]  # bytes and FLOPs of outputs that are kept


@lru_cache(maxsize=4096)
def choose(model: ModelSpec, s: Sizes, layer: int, budget: float) -> Choice:
    """As `keep`, from a rank's sizes. Among sets that save the same FLOPs, the smallest."""
    ops = tuple(block.block(model, s, layer))
    none, inputs = sum(o.saved for o in ops), sum(o.saved_full for o in ops)
    costly = [o for o in ops if o.flops]
    if budget >= 1:
        return Choice(frozenset(_name(o) for o in costly), True, none, none, 0.0, 0.0)
    front: list[_Set] = [(0.0, 0.0, ())]
    for operator in _candidates(s, ops):
        # attention's core comes with the logarithms of its softmax
        price = operator.saved if operator.kind in ("attention", "scan") else operator.written
        extended = [(b + price, f + operator.flops_causal, (*kept, operator)) for b, f, kept in front]
        front = _best(front + [c for c in extended if inputs + c[0] <= budget * none])
    size, _, kept = front[-1]
    redone = [o for o in costly if o not in kept]
    names, causal = frozenset(_name(o) for o in kept), sum(o.flops_causal for o in redone)
    return Choice(names, False, inputs + size, none, sum(o.flops for o in redone), causal)


def _candidates(s: Sizes, ops: tuple[Operator, ...]) -> list[Operator]:
    """Operators whose outputs are worth keeping.

    Not the block's last product: the block's backward doesn't need its output, unless a norm follows. Nor an
    attention core that writes its scores: its backward needs them even with the output kept.
    """
    candidates = [o for o in ops if o.flops and not (o.kind == "attention" and s.attention == "unfused")]
    return candidates[:-1] if ops[-1].kind == "residual" and ops[-2] is candidates[-1] else candidates


def _best(sets: list[_Set]) -> list[_Set]:
    """The Pareto front: sets that save more FLOPs than all smaller sets, by rising bytes."""
    front: list[_Set] = []
    for candidate in sorted(sets, key=lambda c: (c[0], -c[1])):
        if not front or candidate[1] > front[-1][1]:
            front.append(candidate)
    return front


def _name(operator: Operator) -> str:
    """An operator's name within its block: `attention.q` of `layers.3.attention.q`."""
    return operator.name.split(".", 2)[2]
