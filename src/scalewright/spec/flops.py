"""FLOPs of a model: what MFU divides by, and what recomputation adds.

    MFU = flops_per_token x tokens/s / (devices x peak)        (train/metrics/record.py, plan/answer.py)
    flops_per_token = 3 x forward / T                          a backward is two forwards

Sums over operators.py; an operator that runs in a dry run is counted by dry_run/watch.py.
"""

from __future__ import annotations

from functools import lru_cache

from scalewright.spec import block
from scalewright.spec.layout import Layout, Recompute, RecomputeBudget
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import by_kind, is_rerun, operator_groups
from scalewright.spec.primitives import sizes
from scalewright.spec.recompute_budget import choose


@lru_cache(maxsize=4096)
def forward_flops(model: ModelSpec, seq_len: int, causal: bool = True, mtp: bool = False) -> float:
    """Model FLOPs of one sequence's forward; `causal`: of attention, only unmasked pairs; `mtp`: with its modules."""
    groups = operator_groups(model, Layout(), seq_len, mtp=mtp)
    return sum(n * (o.flops_causal if causal else o.flops) for o, n in groups)


def flops_per_token(model: ModelSpec, seq_len: int, causal: bool = True, mtp: bool = False) -> float:
    """Model FLOPs of training per token: forward, and twice that for the backward; `mtp`: with the modules of
    multi-token prediction, which published numbers leave out.

    With `causal=False` this is PaLM's 6 N + 12 L H Q T (N: parameters that multiply; Chowdhery et al. 2022,
    appendix B).
    """
    return 3.0 * forward_flops(model, seq_len, causal, mtp) / seq_len


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
    layers = range(model.num_hidden_layers) if layers is None else layers
    s = sizes(layout, seq_len)

    total = 0.0
    for group in by_kind(model, layers):
        rerun = sum(is_rerun(kind, layer - layers.start) for layer in group)
        if isinstance(kind, RecomputeBudget):
            choice = choose(model, s, group[0], kind.budget)
            total += len(group) * (choice.flops_causal if causal else choice.flops)
        elif rerun:
            redone = [o for o in block.block(model, s, group[0]) if o.kind == "attention" or kind != "selective"]
            total += rerun * sum(o.flops_causal if causal else o.flops for o in redone)
    return total
