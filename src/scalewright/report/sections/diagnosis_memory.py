"""Memory: the peak by what it was for, its curve, and what changes would save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalewright.report.chart import Chart, Series, draw
from scalewright.report.page import Section
from scalewright.spec.common.formatting import decimal

GIB = 1 << 30
KINDS = ("parameters", "gradients", "optimizer", "activations", "communication", "loss", "temporary", "other")
COLOURS = (0, 1, 8, 2, 5, 4, 3, 9)


def section(answer: Mapping[str, Any]) -> Section | None:
    """Of a snapshot, or of a trace that followed memory."""
    memory = answer.get("memory")
    if not memory or memory.get("peak_bytes") is None:
        return None
    kinds = memory.get("by_category") or {}
    peak = memory["peak_bytes"] or 1
    pieces = [
        {"number": colour, "share": kinds[kind] / peak, "name": kind,
         "label": f"{kind} {kinds[kind] / GIB:.2f} GiB"}
        for kind, colour in zip(KINDS, COLOURS, strict=True) if kinds.get(kind)
    ]  # fmt: skip
    data = {
        "peak": f"{peak / GIB:.2f} GiB",
        "phase": memory.get("peak_phase") or "",
        "pieces": pieces,
        "curve": _curve(memory.get("curve")),
        "savings": [
            [saving["how"], f"{saving['saves_bytes'] / GIB:.2f}", f"{saving['peak_bytes'] / GIB:.2f}"]
            for saving in memory.get("savings") or []
        ],
        "stacks": [
            [stack["owner"], f"{stack['bytes'] / GIB:.3f}"] for stack in (memory.get("top_stacks") or [])[:12]
        ],
    }
    return Section("memory", "Where the memory went", "diagnosis_memory.html", data)


def _curve(curve: Mapping[str, Any] | None) -> Any:
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
        Chart(
            "memory", f"Allocated {shown}", "gib", (line,), (0.0, span * factor or 1.0), "GiB", from_zero=True
        )
    )
