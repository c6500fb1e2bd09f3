"""The same run on more and more devices: the best step of each count, and what is left of its speed-up."""

from __future__ import annotations

from typing import Any

from scalewright.report.document import PlanDocument, Reader
from scalewright.report.layout_text import layout_text
from scalewright.report.page import Section
from scalewright.spec.common.formatting import count, share, short_time


def section(document: PlanDocument) -> Section | None:
    """The table; None where the plan wasn't asked for it."""
    scaling = document.read.part("scaling")
    rows = [row(entry) for entry in scaling.parts("rows")]
    if not rows:
        return None
    data = {"rows": rows, "lines": lines(scaling)}
    return Section("scaling", "On more devices", "plan_scaling.html", data)


def row(entry: Reader) -> dict[str, Any]:
    """One count of devices: its best step, or why there is none."""
    devices, seconds, efficiency = (entry.number(key) for key in ("devices", "step_time_s", "efficiency"))
    tokens, speedup = entry.number("tokens_per_s"), entry.number("speedup")
    return {
        "devices": f"{devices or 0:,.0f}",
        "step": short_time(seconds),
        "tokens": f"{count(tokens)}/s" if tokens else "–",
        "speedup": f"{speedup:.3g}×" if speedup else "–",
        "efficiency": share(efficiency),
        "bar": min(max(efficiency or 0.0, 0.0), 1.0),
        "words": layout_text(entry.part("prediction").part("layout").data) if seconds else [],
        "problem": entry.text("problem"),
    }


def lines(scaling: Reader) -> list[str]:
    serial, limit, error = (scaling.number(key) for key in ("serial_share", "limit", "fit_error"))
    if serial is None:
        return []
    sentence = f"Serial share of one device's work (Amdahl's law, fitted): {100 * serial:.3g}%"
    sentence += f", so no count is more than {limit:,.0f} times as fast as one device" if limit else ""
    sentence += f"; the fit is off by {share(error)} at most." if error is not None else "."
    sentences = [sentence]
    parts = [
        f"{part.text('words') or part.text('part')} {share(part.number('share'))}"
        for part in scaling.parts("serial_part")
    ]
    if parts:
        sentences.append("What doesn't shrink: " + ", ".join(parts) + ".")
    return sentences
