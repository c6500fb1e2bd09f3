"""Activation recomputation (Chen et al. 2016; Korthikanti et al. 2022 §5): parts of a block run twice.

    none         keep everything                                           no extra work
    selective    keep the outputs of matmuls; redo attention's core and    a few percent
                 the elementwise parts
    full         keep a block's input alone; redo the block                one more forward, a third of a step
    every: k     full, on every k-th block
    budget: f    keep the products that save most work for their bytes,    the other products
                 within f of the bytes of `none` (`spec/recompute_budget.py`)

Gradients are bit-equal to those of `none`: the same operators run on the same numbers. Collectives inside a
block run again, too, in their order; all ranks of a group recompute the same block at the same time. Under a
budget the outputs are kept that the spec's knapsack chose:

    spec/recompute_budget.keep(model, layout, T, budget) -> {"attention.core", "mlp.gate", ...}      pure data
    here: the n-th matrix product of a block is the n-th of its spec's products               policy

An operator is identified by its index among the block's matrix products, the same in eager and compiled blocks, with
and without sharding; attention's core by its kernel. The choice needs no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scalewright.model.torch_private import GROUPED_MM, hidden_from_recomputation
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec
from scalewright.spec.recompute_budget import Choice, keep, products


def apply_recompute(
    blocks: Sequence[nn.Module], kind: Any, *, random: bool = False, model: ModelSpec | None = None,
    layout: Layout | None = None, seq_len: int | None = None,
) -> None:  # fmt: skip
    """Makes blocks (of one stage) recompute in the backward, in place.

    `random`: they use random numbers (dropout). Saving the random state costs a host sync on a GPU, so it is
    left out for blocks without. A budget needs the `model` whose blocks they are; `layout` and `seq_len`
    (null: the model's context) give their operators' costs.
    """
    if kind == "none":
        return
    for index, block in enumerate(blocks):
        contexts: Callable[[], Any] | None = None
        if isinstance(kind, RecomputeEvery) and index % kind.every:
            continue
        if kind == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _policy)
        if isinstance(kind, RecomputeBudget):
            assert model is not None, "a budget is for models of our own"
            layer: int = block.attention.layer  # type: ignore[assignment,union-attr]
            choice = keep(model, layout or Layout(), seq_len or model.context, kind.budget, layer)
            if choice.whole:
                continue
            if choice.kept:
                contexts = partial(budget_contexts, *marks(model, layer, choice))
        block.forward = _wrapped(block.forward, random, contexts)


def _wrapped(forward: Callable[..., Any], random: bool, contexts: Callable[[], Any] | None) -> Callable[..., Any]:
    wrap: Callable[..., Any] = partial(checkpoint, use_reentrant=False, preserve_rng_state=random)
    if contexts is not None:
        wrap = partial(wrap, context_fn=contexts)

    def run(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **keywords)
        return wrap(forward, *arguments, **keywords)

    return run


def _policy(ctx: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Matrix products are expensive to redo, so their outputs are kept; all other operators run again."""
    return _kept(operator in PRODUCTS)


def outside_recomputation(module: nn.Module) -> None:
    """Hides the forward hooks of a module inside a block from a recomputation that keeps some operators.

    It expects the same operators again in the same order. FSDP's hooks gather parameters in a forward that
    may be there already when it runs again.
    """
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in hooks.items():
            hooks[key] = _unseen(hook)


def _unseen(hook: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        return hidden_from_recomputation(partial(hook, *arguments, **keywords))

    return run


PRODUCTS = frozenset(
    {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default, GROUPED_MM}
)
CORE = "attention.core"
# PyTorch's, ours (model/rows.py), and those of a GPU for packed rows (model/gpu_rows.py)
CORES = ("_scaled_dot_product_", "scalewright::attend_rows", "torch_attn::_varlen_attn", "flex_attention")


def budget_contexts(kept: tuple[bool, ...], core: bool) -> Any:
    """Checkpoint contexts that keep the products marked in `kept`, in their order, and the core if `core`."""
    return create_selective_checkpoint_contexts(Policy(kept, core))  # type: ignore[no-untyped-call]


def marks(model: ModelSpec, layer: int, choice: Choice) -> tuple[tuple[bool, ...], bool]:
    """A choice as the arguments of `budget_contexts`."""
    return tuple(name in choice.kept for name in products(model, layer)), CORE in choice.kept


class Policy:
    """Keeps chosen products of one run of a block, by their index."""

    def __init__(self, kept: tuple[bool, ...], core: bool) -> None:
        self.kept, self.core = kept, core
        self.seen = {False: 0, True: 0}  # products so far: in the forward, in the recomputation

    def __call__(self, ctx: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        if operator in PRODUCTS:
            index = self.seen[ctx.is_recompute]
            self.seen[ctx.is_recompute] = index + 1
            return _kept(index < len(self.kept) and self.kept[index])
        return _kept(self.core and is_core(operator))


def is_core(operator: Any) -> bool:
    """Whether an operator is attention's core, from q, k and v to the output."""
    name = operator.name()
    return "backward" not in name and any(core in name for core in CORES)


def _kept(keep: bool) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
