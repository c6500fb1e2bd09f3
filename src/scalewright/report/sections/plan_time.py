"""Where the step's time goes, part by part to its sum."""

from __future__ import annotations

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import with_precision
from scalewright.report.page import Section
from scalewright.report.present.blocks import Bar
from scalewright.report.present.prediction import time_bars
from scalewright.spec.common.formatting import share, short_time


def section(document: PlanDocument) -> Section | None:
    best = document.first
    if best is None or not best.parts:
        return None
    slowest = max(estimate.seconds for estimate in document.best)
    whole = sum(best.parts.values())
    data = {
        "rows": rows(best),
        "step": short_time(best.seconds),
        "sum": short_time(whole),
        "adds_up": abs(whole - best.seconds) <= 0.01 * best.seconds,
        "layouts": [compared(*ranked, slowest) for ranked in enumerate(document.best, 1)] if document.best[1:] else [],
    }
    return Section("time", "Where the time goes", "plan_time.html", data)


def rows(best: Estimate) -> list[dict[str, object]]:
    """Every part that takes time; the bars start where the one before ends."""
    bars, before = [], 0.0
    for bar in parts(best):
        width = bar.value / best.seconds
        shown = {"number": bar.part, "name": bar.name, "seconds": bar.text, "share": share(width)}
        bars.append({**shown, "start": before / best.seconds, "width": width})
        before += bar.value
    return bars


def parts(estimate: Estimate) -> list[Bar]:
    """The parts above nothing."""
    return [bar for bar in time_bars(estimate).rows if bar.value > 0]


def compared(rank: int, estimate: Estimate, slowest: float) -> dict[str, object]:
    """A layout's step as one bar, on the scale of the slowest."""
    return {
        "rank": rank,
        "name": " · ".join(with_precision(estimate.layout)),
        "seconds": short_time(estimate.seconds),
        "pieces": [
            {"number": bar.part, "share": bar.value / slowest, "said": f"{bar.name} {bar.text}"}
            for bar in parts(estimate)
        ],
    }
