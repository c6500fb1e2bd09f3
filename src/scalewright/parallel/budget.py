"""Recomputation under a memory budget: keeps the outputs that the spec's knapsack chose.

    spec/recompute_budget.keep(model, layout, T, budget) -> {"attention.core", "mlp.gate", ...}      pure data
    here: the n-th matrix product of a block is the n-th of its spec's products               policy

An operator is identified by its index among the block's matrix products, which is the same in eager and
compiled blocks, with and without sharding; attention's core by its kernel. The choice needs no compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from scalewright.model.torch_private import GROUPED_MM
from scalewright.spec.model import ModelSpec
from scalewright.spec.recompute_budget import Choice, products

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
            return _policy(index < len(self.kept) and self.kept[index])
        return _policy(self.core and is_core(operator))


def is_core(operator: Any) -> bool:
    """Whether an operator is attention's core, from q, k and v to the output."""
    name = operator.name()
    return "backward" not in name and any(core in name for core in CORES)


def _policy(keep: bool) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
