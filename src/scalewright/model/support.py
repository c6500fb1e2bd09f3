"""Which models run: the rest are counted and planned, and say in one line why they don't run yet."""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec


def why_not_running(spec: ModelSpec) -> str | None:
    """What this model has that the decoder lacks; None when it runs."""
    scaling = spec.rope.scaling
    lacking = {
        "a mixture of experts": spec.moe is not None,
        "multi-head latent attention": spec.mla is not None,
        "multi-token prediction": spec.mtp_layers > 0,
        "attention sinks": spec.attention_sinks,
        "longrope scaling": scaling is not None and scaling.kind == "longrope",
    }
    return next((part for part, present in lacking.items() if present), None)


def check_runs(spec: ModelSpec) -> None:
    """Raises UserError when the decoder can't run this model yet."""
    reason = why_not_running(spec)
    if reason is not None:
        raise UserError(
            f"model '{spec.name}' is counted but doesn't run yet: it has {reason}",
            f"family {spec.family}",
            "predict and plan take it; train a dense model such as llama-3.1-8b",
        )
