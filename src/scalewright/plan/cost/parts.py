"""Parts of a block that trainers recompute by themselves, or keep in 8 bits: their operators, what they keep.

core         attention's scores and softmax      dense, dense_act     an MLP, its activation
norms        before attention and MLP            experts, expert_act  router to combine, the activation
latent       MLA's up projections                shared               the shared experts
"""

from __future__ import annotations

from scalewright.spec.primitives import Operator

# Parts of a block that trainers recompute by themselves; the rest of it is in none
PARTS = ("core", "norms", "latent", "dense", "dense_act", "shared", "experts", "expert_act")
REST = len(PARTS)
NORMS = ("attention_norm", "mamba_norm", "deltanet_norm", "mlp_norm")


def part_of(o: Operator) -> int:
    """The part of a block that an operator belongs to; REST where it is in none."""
    owner = o.name.split(".", 2)[-1]
    if o.kind == "attention":
        return PARTS.index("core")
    if owner in NORMS:
        return PARTS.index("norms")
    if owner in ("attention.q_up", "attention.kv_up") or (o.kind == "rope" and o.saved):
        return PARTS.index("latent")
    if owner.startswith("mlp.shared"):
        return PARTS.index("shared")
    if owner.startswith("mlp.experts") or o.kind in ("router", "dispatch", "combine"):
        return PARTS.index("expert_act" if o.kind == "activation" else "experts")
    if owner.startswith("mlp."):
        return PARTS.index("dense_act" if o.kind == "activation" else "dense")
    return REST


def freed(o: Operator) -> float:
    """Bytes that are not kept where an operator's part is recomputed: a norm's input stays all the same."""
    if o.kind == "attention":
        return o.saved_core
    return min(o.saved, o.written) if o.kind == "norm" else o.saved


def input_of_product(o: Operator) -> float:
    """Bytes that an operator keeps because a product reads them."""
    if o.kind in ("dispatch", "activation"):
        return o.saved
    return min(o.saved, o.written) if o.kind == "norm" else 0.0


def gate(o: Operator) -> float:
    """Bytes that a product keeps because a gated activation reads them."""
    return o.written if o.name.endswith((".gate", ".up")) and o.saved >= o.written else 0.0
