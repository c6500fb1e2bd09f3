"""Which models run: the rest are counted and planned, and say in one line why they don't run yet."""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.model import ModelSpec


def check_runs(spec: ModelSpec) -> None:
    """Raises UserError when the decoder can't run this model yet."""
    reason = why_not_running(spec)
    if reason is not None:
        raise UserError(reason, f"model '{spec.name}'", "plan it, or run a dense model such as llama-3.1-8b")
