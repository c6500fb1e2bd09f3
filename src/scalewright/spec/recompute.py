"""What a block keeps under a memory budget: a small knapsack over its operators.

    keep:      a set S of matrix products and attention cores
    maximise   sum of FLOPs(S)                                        what the backward needn't redo
    so that    bytes(block input) + sum of bytes(S) <= budget x bytes that `none` keeps

A kept output costs its bytes; everything else (norms, rotary turns, activations) is redone from the kept ones
and costs memory traffic, hardly FLOPs. At most some fifteen products a block: the best set is found exactly,
by extending a front of sets of which none is both larger and worse than another. Budget 1 keeps all that
`none` keeps, 0 the block's input alone (`full`). The trainer executes (`parallel/budget.py`) the same choice
that the planner prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scalewright.spec import block
from scalewright.spec.block import Operator, Sizes, sizes
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Choice:
    """What one block keeps of one micro-batch on one rank, and what its backward redoes."""

    kept: frozenset[str]  # operators within the block whose outputs are kept: `attention.q`, `mlp.up`
    whole: bool  # keeps all that `none` keeps: nothing is redone
    bytes: float  # kept, with the block's input
    none_bytes: float  # what `none` keeps
    flops: float  # of the products that are redone; attention over the full square
    flops_causal: float  # the same with what causal mask and sliding window leave


def keep(model: ModelSpec, layout: Layout, seq_len: int, budget: float, layer: int = 0) -> Choice:
    """What block `layer` keeps so that its bytes are at most `budget` (0 to 1) times those of `none`."""
    return choose(model, sizes(layout, seq_len), layer, budget)


def products(model: ModelSpec, layer: int = 0) -> tuple[str, ...]:
    """The names of a block's matrix products, in the order in which they run; attention's core isn't one."""
    found = block.block(model, sizes(Layout(), 1), layer)
    return tuple(_name(o) for o in found if o.flops and o.kind not in ("attention", "scan"))


def least_budget(model: ModelSpec, layout: Layout, seq_len: int) -> float:
    """The share that the blocks' inputs alone take of what `none` keeps: no budget above 0 can be lower."""
    s = sizes(layout, seq_len)
    layers = {model.kind(n): n for n in range(model.num_hidden_layers)}
    choices = [choose(model, s, layer, 0.0) for layer in layers.values()]
    return max(choice.bytes / choice.none_bytes for choice in choices)


# -- the knapsack ---------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def choose(model: ModelSpec, s: Sizes, layer: int, budget: float) -> Choice:
    """As `keep`, from a rank's sizes. Among sets that save as much, the smallest."""
    found = tuple(block.block(model, s, layer))
    none, held = sum(o.saved for o in found), sum(o.saved_full for o in found)
    every = [o for o in found if o.flops]
    if budget >= 1:
        return Choice(frozenset(_name(o) for o in every), True, none, none, 0.0, 0.0)
    front: list[tuple[float, float, tuple[Operator, ...]]] = [(0.0, 0.0, ())]
    for operator in _candidates(model, s, found):
        price = _price(operator)
        more = [(b + price, f + operator.flops_causal, (*kept, operator)) for b, f, kept in front]
        front = _best(front + [m for m in more if held + m[0] <= budget * none])
    size, _, kept = front[-1]
    again = [o for o in every if o not in kept]
    return Choice(
        frozenset(_name(o) for o in kept), False, held + size, none,
        sum(o.flops for o in again), sum(o.flops_causal for o in again),
    )  # fmt: skip


def _candidates(model: ModelSpec, s: Sizes, found: tuple[Operator, ...]) -> list[Operator]:
    """Operators whose outputs are worth keeping.

    The block's last product is none: nothing in the block's backward needs its output, unless a norm follows.
    Nor is an attention core that writes its scores: its backward needs them, kept output or not.
    """
    unfused = s.attention == "unfused" or model.attention_softcap is not None
    worth = [o for o in found if o.flops and not (o.kind == "attention" and unfused)]
    return worth[:-1] if found[-1].kind == "residual" and found[-2] is worth[-1] else worth


def _price(operator: Operator) -> float:
    """Bytes of keeping an operator's output; attention's core comes with the logarithms of its softmax."""
    return operator.saved if operator.kind in ("attention", "scan") else operator.written


def _best(
    sets: list[tuple[float, float, tuple[Operator, ...]]],
) -> list[tuple[float, float, tuple[Operator, ...]]]:
    """Those that no smaller (or equal) set matches in FLOPs, by rising bytes."""
    out: list[tuple[float, float, tuple[Operator, ...]]] = []
    for candidate in sorted(sets, key=lambda c: (c[0], -c[1])):
        if not out or candidate[1] > out[-1][1]:
            out.append(candidate)
    return out


def _name(operator: Operator) -> str:
    """`attention.q` of `layers.3.attention.q`."""
    return operator.name.split(".", 2)[2]
