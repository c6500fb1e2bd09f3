"""The steps of a log or a run: their times, the loss, throughput and memory, as curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalewright.report.chart import Chart, Series, draw
from scalewright.report.page import Section
from scalewright.report.scale import Kind

CURVES: tuple[tuple[str, str, Kind, str], ...] = (
    ("step_time_s", "Step time", "seconds", ""),
    ("loss", "Loss", "number", ""),
    ("tflops", "TFLOP/s", "number", "a device"),
    ("tokens_per_s", "Tokens", "count", "a second"),
    ("grad_norm", "Gradient norm", "number", ""),
    ("memory_gib", "Memory", "gib", "GiB"),
)


def section(answer: Mapping[str, Any]) -> Section | None:
    if "log" not in answer or len(answer["log"]["steps"]) < 2:
        return None
    rows = answer["log"]["steps"]
    steps = np.array(
        [row["step"] if row["step"] is not None else place for place, row in enumerate(rows)], float
    )
    drawings = []
    for key, title, kind, unit in CURVES:
        values = np.array([row.get(key) if row.get(key) is not None else np.nan for row in rows], dtype=float)
        if np.isfinite(values).sum() >= 2:
            line = Series("each step", "line", steps, values)
            ends = (
                float(steps.min()),
                float(steps.max()) if steps.max() > steps.min() else float(steps.min()) + 1,
            )
            drawings.append(draw(Chart(key, title, kind, (line,), ends, unit, from_zero=key != "loss")))
    return (
        Section("steps", "Its steps", "diagnosis_curves.html", {"drawings": drawings}) if drawings else None
    )
