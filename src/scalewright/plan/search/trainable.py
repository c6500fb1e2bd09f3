"""Whether `train` runs a layout that the planner can price; if not, why, in one plain line.

The spec is the judge: the model's own check, the layout's, and the schedule's; what is listed here are the
axes that the trainer hasn't yet.
"""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec

PRECISIONS = ("auto", "fp32", "tf32", "bf16")


def untrainable(model: ModelSpec, layout: Layout, seq_len: int) -> str | None:
    """Why `train` can't yet run this layout; None when it can."""
    reason = why_not_running(model)
    if reason is not None:
        return f"the model is planned only: {reason}"
    for key, size in (("cp", layout.cp), ("ep", layout.ep), ("etp", layout.etp)):
        if size > 1:
            return f"{key} {size} needs another trainer: `scalewright train` has {key} 1 only"
    if layout.precision not in PRECISIONS:
        has = ", ".join(PRECISIONS)
        return f"precision {layout.precision} needs another trainer: `scalewright train` has {has} only"
    if model.positions == "learned" and seq_len > model.learned_positions:
        return f"seq_len {seq_len} is more than the model's {model.learned_positions} learned positions"
    try:
        check_layout(layout, model, seq_len, train=True)
    except UserError as error:
        return error.what
    return None
