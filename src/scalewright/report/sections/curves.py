"""The numbers over the steps: the loss large, what explains it and what it cost below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewright.report.chart import Chart, Mark, Series, draw, plain
from scalewright.report.folder import Column, RunFolder, resumes
from scalewright.report.page import Section
from scalewright.report.sections.overview import peak_note
from scalewright.report.series import Kind, rolling_median, smooth

SMOOTH_FROM = 20  # fewer steps are their own best summary
MOST_MARKS = 200
AXIS_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """One column of the training rows, and how it is best seen.

    `calm` is the line through its noise: an average follows a trend, a median ignores single slow steps,
    and a number without noise needs neither.
    """

    column: str
    title: str
    kind: Kind
    unit: str = ""
    note: str = ""
    calm: Literal["average", "median", "none"] = "none"
    from_zero: bool = True
    label: str = "each step"
    large: bool = False
    sparse: bool = False  # some rows have it, and are joined


CURVES = (
    Curve("loss", "Loss", "number", "nats per token", "", "average", False, "training", large=True),
    Curve("tokens_per_s", "Throughput", "count", "tokens/s", calm="median"),
    Curve("step_time_s", "Step time", "seconds", calm="median"),
    Curve("mfu", "MFU", "percent", note="model FLOP utilization", calm="median"),
    Curve("grad_norm", "Gradient norm", "number", note="before clipping", calm="average"),
    Curve("lr", "Learning rate", "number"),
    Curve("memory_gib", "Memory", "gib", "GiB, fullest rank"),
    Curve("aux_loss", "Auxiliary loss", "number", note="beside the loss", calm="average"),
    Curve("expert_load_max", "Busiest expert", "number", "tokens over the mean", "1: all alike", "average"),
    Curve("outer_grad_norm", "Outer gradient", "number", note="norm, at outer steps", sparse=True),
    Curve("expert_entropy", "Entropy of the experts' loads", "percent", note="100%: all alike", calm="average"),
    Curve("expert_drop_share", "Dropped by experts", "percent", note="of all choices", calm="average"),
)


def section(run: RunFolder) -> Section | None:
    """Every chart that has something to show; None before the first row."""
    charts = [chart for curve in CURVES if (chart := make(run, curve)) is not None]
    if not charts:
        return None
    drawings = [draw(chart) for chart in charts]
    drawings[0].data["axes"] = axes(run)  # all charts share them
    data = {"drawings": drawings, "marks": sorted({mark.kind for chart in charts for mark in chart.marks})}
    return Section("curves", "How it went", "curves.html", data, [drawing.data for drawing in drawings])


def axes(run: RunFolder) -> dict[str, list[float | None]]:
    """Steps with the tokens and the seconds of training until then, at up to `AXIS_POINTS` places.

    Seconds are those of the steps alone: what a run waited between its lives isn't in them.
    """
    first, last = _span(run)
    train = run.train
    if len(train) < 2:
        return {"step": [first, last]}
    chosen = np.unique(np.linspace(0, len(train) - 1, min(len(train), AXIS_POINTS)).astype(int))
    columns = {"step": train.steps}
    tokens, seconds = train.get("tokens"), train.get("step_time_s")
    if np.isfinite(tokens).all() and (np.diff(tokens) >= 0).all() and tokens[-1] > tokens[0]:
        columns["tokens"] = tokens
    if np.isfinite(seconds).any():
        columns["seconds"] = np.cumsum(np.nan_to_num(seconds))
    return {name: plain(values[chosen]) for name, values in columns.items()}


def make(run: RunFolder, curve: Curve) -> Chart | None:
    """The chart of one column; None when it has no finite value, or only zeros where zero means unused."""
    values = run.train.get(curve.column)
    if curve.column in ("aux_loss", "expert_drop_share") and not np.nanmax(values, initial=0.0):
        return None
    lines = _lines(run, curve, values)
    if curve.column == "loss" and run.valid.has("loss"):
        lines.append(Series("validation", "valid", run.valid.steps, run.valid.get("loss")))
    if not lines:
        return None
    note = peak_note(run)
    return Chart(
        id=curve.column, title=curve.title, kind=curve.kind, series=tuple(lines), steps=_span(run), unit=curve.unit,
        note=f"{curve.note}, of {note}" if curve.column == "mfu" and note else curve.note, from_zero=curve.from_zero,
        wide=curve.large, steep=curve.calm == "average", marks=tuple(_marks(run, curve.column, values)),
    )  # fmt: skip


def _lines(run: RunFolder, curve: Curve, values: Column) -> list[Series]:
    steps = run.train.steps
    if not np.isfinite(values).any():
        return []
    if curve.sparse:
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
    if curve.calm == "none" or len(values) < SMOOTH_FROM:
        return [Series(curve.label, "line", steps, values)]
    raw = Series(curve.label, "raw", steps, values)
    if curve.calm == "median":
        width = max(5, len(values) // 40 | 1)
        return [raw, Series(f"median of {width}", "line", *rolling_median(steps, values, width))]
    span = min(max(len(values) / 40, 5), 500)
    return [raw, Series("smoothed", "line", steps, smooth(values, span))]


def _marks(run: RunFolder, column: str, values: Column) -> list[Mark]:
    resumed = {event.get("step") for event in resumes(run.events)}
    marks = [Mark(step, "resume") for step in run.steps_of("resume") if step in resumed]
    marks += [Mark(step, "fault") for step in run.steps_of("fault")]
    rewinds = [event.get("to") for event in run.events if event.get("action") == "rewound"]
    marks += [Mark(step, "rewind") for step in sorted({step for step in rewinds if isinstance(step, int)})]
    if column in ("loss", "grad_norm"):  # in the others a missing value is no fault
        marks += [Mark(step, "nonfinite") for step in run.train.steps[~np.isfinite(values)].tolist()[:MOST_MARKS]]
    return marks


def _span(run: RunFolder) -> tuple[float, float]:
    steps = np.concatenate([run.train.steps, run.valid.steps])
    first, last = float(steps.min()), float(steps.max())
    return (first, last) if last > first else (first - 1, last + 1)
