"""How much memory a run needs, estimated at once and without torch, from the planner's sums over operators.

    low = most of the planned peak  <  peak of the fullest rank  <  the planned p90 = high

`helps` names the change of a run file's keys after which `high` is within what is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from scalewright.plan.constants import constants
from scalewright.plan.cost.evaluate import evaluate_memory, prepare
from scalewright.plan.request import from_question
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import is_legal
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.run import PythonRef, RunSpec

ANY_GPU = "dgx-h100"  # a device that has every precision: bytes don't depend on it
_CHIPS = {"cuda": ("gpu",), "cpu": ("cpu",)}  # whose kernels run: of `device: auto` either may be meant
CERTAIN = 0.8  # of the planned peak: tiny runs keep less than their tensors, padded, add up to


@dataclass(frozen=True)
class Need:
    """Bytes of the fullest rank: surely more than `low`, hardly more than `high`."""

    low: float
    high: float


def estimate(run: RunSpec, seq_len: int, layout: Layout | None = None) -> Need | None:
    """The memory of the run's fullest rank; None for a model of the user's own, which isn't counted here."""
    model, layout = run.model, layout or run.layout
    if not isinstance(model, ModelSpec):
        return None
    lows, highs = [], []
    for precision, chip in product(
        ("fp32", "bf16") if layout.precision == "auto" else (layout.precision,), _CHIPS.get(run.device, ("gpu", "cpu"))
    ):
        sized = Layout.parse({**layout.dump(), "precision": precision})
        request = from_question(Question(run, load_cluster(ANY_GPU), length=seq_len).with_layout(sized))
        prepared = prepare([replace(request, chip=replace(request.chip, kind=chip))])
        usage = evaluate_memory(prepared, constants())
        part = {kind: float(bytes_[0]) for kind, bytes_ in usage.parts.items()}
        unknown = part["optimizer"] if isinstance(run.optimizer, PythonRef) else 0.0
        lows.append(CERTAIN * (float(usage.peak[0]) - unknown))
        highs.append(float(usage.high[0]))
    return Need(min(lows), max(highs))


def helps(run: RunSpec, seq_len: int, free: float, ranks: int) -> str | None:
    """The first change, nearest first, after which `ranks` of it fit in `free` bytes, as overrides."""
    model = run.model
    if not isinstance(model, ModelSpec):
        return None
    for words, changes, length in _changes(run.layout, seq_len):
        try:
            layout = Layout.parse({**run.layout.dump(), **changes})
            need = estimate(run, length, layout) if is_legal(layout, model, length) else None
        except UserError:
            continue
        if need is not None and need.high * ranks <= free:
            return words
    return None


def _changes(layout: Layout, seq_len: int) -> Iterator[tuple[str, dict[str, object], int]]:
    """(overrides, changes of the layout, sequence length), the least first."""
    less: dict[str, object] = {"micro_batch": 1} if layout.micro_batch > 1 else {}
    again: dict[str, object] = {"recompute": "full"} if layout.recompute != "full" else {}
    shard: dict[str, object] = {"zero_stage": 3} if layout.dp > 1 and layout.zero_stage != 3 else {}
    for changes in (less, again, shard, {**less, **again}, {**less, **again, **shard}):
        if changes:
            yield _overrides(changes), changes, seq_len
    for lean in ({}, {**less, **again}):
        for times in (2, 4, 8, 16, 32, 64, 128):
            if seq_len // times >= 16:
                length = seq_len // times // 16 * 16
                yield " ".join([f"data.seq_len={length}", _overrides(lean)]).strip(), lean, length


def _overrides(changes: dict[str, object]) -> str:
    return " ".join(f"layout.{key}={value}" for key, value in changes.items())
