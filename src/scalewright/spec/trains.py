"""The check of whether `train` can run a model, a layout and a length; or the reason why not.

check_trains(model, layout, seq_len)        raises UserError        train, parity, dry run
why_not_trained(model, layout, seq_len)     the reason, or None     plan, predict
check_runs(model)                           the model's part        the network itself
"""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")


def check_trains(model: ModelSpec, layout: Layout, seq_len: int | None) -> None:
    """Raises UserError for what `train` can't run; `seq_len` is null when only the data contain it."""
    check_runs(model)
    check_axes(layout)
    check_layout(layout, model, seq_len, train=True)
    if seq_len and model.positions == "learned" and seq_len > model.learned_positions:
        problem = f"seq_len {seq_len} is more than the model's {model.learned_positions} learned positions"
        raise UserError(problem, "data", f"use seq_len {model.learned_positions}")


def why_not_trained(model: ModelSpec, layout: Layout, seq_len: int) -> str | None:
    """Why `train` can't run this layout yet, in one line; None when it can."""
    try:
        check_trains(model, layout, seq_len)
    except UserError as error:
        return error.what
    return None


def check_runs(model: ModelSpec) -> None:
    """Raises UserError for a model that is counted but doesn't run yet."""
    if reason := why_not_running(model):
        raise UserError(reason, f"model '{model.name}'", "plan it, or run a dense model such as llama-3.1-8b")


def check_axes(layout: Layout) -> None:
    """Raises UserError for axes and precisions that the trainer doesn't have, whatever the model."""
    if layout.precision not in PRECISIONS:
        what = f"precision {layout.precision} can be planned but not trained yet"
        raise UserError(what, "layout", "use auto, fp32, bf16 or fp16")
