"""The evidence for the numbers: the nearest measured runs beside their predictions, and the assumptions."""

from __future__ import annotations

from typing import Any

from scalewright.report.document import PlanDocument, Reader
from scalewright.report.layout_text import layout_text
from scalewright.report.page import Section
from scalewright.spec.common.formatting import against, short_time


def section(document: PlanDocument) -> Section | None:
    """The runs and the assumptions; None where the plan has neither."""
    best = document.first
    if best is None:
        return None
    evidence = best.read.part("evidence")
    pairs = [(run, run.number("measured"), run.number("predicted")) for run in evidence.parts("nearest")]
    data = {
        "runs": [
            row(run, measured, predicted) for run, measured, predicted in pairs if measured and predicted
        ],
        "probe": evidence.text("probe"),
        "extrapolates": outside(evidence),
        "assumed": list(dict.fromkeys([*document.read.lines("assumed"), *best.read.lines("assumed")])),
        "convention": best.read.text("flops_convention"),
    }
    return Section("evidence", "How sure", "plan_evidence.html", data) if any(data.values()) else None


def outside(evidence: Reader) -> list[str]:
    """The parts that no measured run covers; a name alone only where no line has it."""
    lines = evidence.lines("extrapolates")
    names = [name for name in evidence.lines("never_measured") if not any(name in line for line in lines)]
    return [*(f"no run of {name}" for name in names), *lines]


def row(run: Reader, measured: float, predicted: float) -> dict[str, Any]:
    devices, longest = run.number("n_devices"), max(measured, predicted)
    where = f"{devices:,.0f} × {run.text('device')}" if devices else run.text("device")
    layout = run.part("layout").data
    batch, sequence = run.part("layout").number("global_batch"), run.number("seq_len")
    sizes = [f"batch {batch:,.6g}" if batch else "", f"sequences of {sequence:,.0f}" if sequence else ""]
    return {
        "source": " · ".join(run.text(key) for key in ("trainer", "date", "source") if run.text(key)),
        "run": " on ".join(part for part in (run.text("model"), where) if part),
        "layout": layout_text(layout) if layout else [],
        "sizes": ", ".join(size for size in sizes if size),
        "measured": short_time(measured),
        "predicted": short_time(predicted),
        "measured_share": measured / longest,
        "predicted_share": predicted / longest,
        "off": against(measured, predicted),
    }
