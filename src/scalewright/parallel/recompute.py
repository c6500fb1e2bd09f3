"""Activation recomputation (Chen et al. 2016; Korthikanti et al. 2022 §5): parts of a block run twice.

    none        keep everything                                            no extra work
    selective   keep what matmuls give; redo attention's core and the      a few percent
                elementwise parts
    full        keep a block's input alone; redo the block                 one more forward, a third of a step
    every: k    full, on every k-th block

Gradients are bit-equal to those of `none`: the same operators run on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scalewright.spec.layout import RecomputeEvery

# Matrix products: dear to redo, so their outputs are kept. All other operators run again.
KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.linear.default,
    }
)


def apply_recompute(blocks: Sequence[nn.Module], kind: Any, *, random: bool = False) -> None:
    """Makes blocks recompute in the backward, in place; `random`: they use random numbers (dropout).

    Saving the random state costs a host sync on a GPU, so it is left out for blocks without dropout.
    """
    if kind == "none":
        return
    step = kind.every if isinstance(kind, RecomputeEvery) else 1
    wrap = partial(checkpoint, use_reentrant=False, preserve_rng_state=random)
    if kind == "selective":
        wrap = partial(wrap, context_fn=partial(create_selective_checkpoint_contexts, _policy))
    for index, block in enumerate(blocks):
        if index % step == 0:
            block.forward = _wrapped(wrap, block.forward)


def _wrapped(wrap: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **keywords)
        return wrap(forward, *arguments, **keywords)

    return run


def _policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
