"""Curves of a diagnosis: a log's steps (time, loss, throughput), and memory with what its peak was for."""

from __future__ import annotations

import numpy as np

from scalewright.report.chart import Chart, Drawing, Series, draw
from scalewright.report.document import JSON
from scalewright.report.page import Section
from scalewright.report.series import Kind
from scalewright.spec.common.formatting import decimal

GIB = 1 << 30
KINDS = ("parameters", "gradients", "optimizer", "activations", "communication", "loss", "temporary", "other")
COLOURS = (0, 1, 8, 2, 5, 4, 3, 9)
CURVES: tuple[tuple[str, str, Kind, str], ...] = (
    ("step_time_s", "Step time", "seconds", ""),
    ("loss", "Loss", "number", ""),
    ("tflops", "TFLOP/s", "number", "a device"),
    ("tokens_per_s", "Tokens", "count", "a second"),
    ("grad_norm", "Gradient norm", "number", ""),
    ("memory_gib", "Memory", "gib", "GiB"),
)


def steps_section(answer: JSON) -> Section | None:
    if "log" not in answer or len(answer["log"]["steps"]) < 2:
        return None
    rows = answer["log"]["steps"]
    steps = np.array([row["step"] if row["step"] is not None else place for place, row in enumerate(rows)], float)
    drawings = []
    for key, title, kind, unit in CURVES:
        values = np.array([row.get(key) if row.get(key) is not None else np.nan for row in rows], dtype=float)
        if np.isfinite(values).sum() >= 2:
            line = Series("each step", "line", steps, values)
            ends = (float(steps.min()), float(steps.max()) if steps.max() > steps.min() else float(steps.min()) + 1)
            drawings.append(draw(Chart(key, title, kind, (line,), ends, unit, from_zero=key != "loss")))
    return Section("steps", "Its steps", "diagnosis_curves.html", {"drawings": drawings}) if drawings else None


def memory_section(answer: JSON) -> Section | None:
    """Of a snapshot, or of a trace that followed memory."""
    memory = answer.get("memory")
    if not memory or memory.get("peak_bytes") is None:
        return None
    kinds = memory.get("by_category") or {}
    peak = memory["peak_bytes"] or 1
    pieces = [
        {"number": colour, "share": kinds[kind] / peak, "name": kind, "label": f"{kind} {kinds[kind] / GIB:.2f} GiB"}
        for kind, colour in zip(KINDS, COLOURS, strict=True)
        if kinds.get(kind)
    ]
    data = {
        "peak": f"{peak / GIB:.2f} GiB",
        "phase": memory.get("peak_phase") or "",
        "pieces": pieces,
        "curve": _curve(memory.get("curve")),
    }
    return Section("memory", "Where the memory went", "diagnosis_memory.html", data)


def _curve(curve: JSON | None) -> Drawing | None:
    """Allocated bytes over time; None where they weren't followed."""
    if not curve or len(curve["time_s"]) < 2:
        return None
    times = np.array(curve["time_s"], dtype=float)
    span = times[-1] - times[0]
    unit, factor = ("ms", 1e3) if span >= 0.01 else ("µs", 1e6)
    values = np.array(curve["allocated_bytes"], dtype=float) / GIB
    line = Series("allocated", "line", (times - times[0]) * factor, values)
    shown = f"over {decimal(span * factor, 3)} {unit}"
    return draw(
        Chart("memory", f"Allocated {shown}", "gib", (line,), (0.0, span * factor or 1.0), "GiB", from_zero=True)
    )
