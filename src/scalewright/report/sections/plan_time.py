"""Where the step's time goes, part by part to its sum."""

from __future__ import annotations

from collections.abc import Mapping

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import with_precision
from scalewright.report.page import Section
from scalewright.spec.common.formatting import share, short_time
from scalewright.spec.step_parts import PART_TERMS

ORDER = ("compute", "recompute", "tp_exposed", "cp_exposed", "ep_exposed", "dp_exposed")
PARTS = {key: PART_TERMS[key] for key in (*ORDER, *(key for key in PART_TERMS if key not in ORDER))}


def section(document: PlanDocument) -> Section | None:
    best = document.first
    if best is None or not best.parts:
        return None
    others = document.best[1:]
    slowest = max(estimate.seconds for estimate in document.best)
    whole = sum(best.parts.values())
    data = {
        "rows": rows(best),
        "step": short_time(best.seconds),
        "sum": short_time(whole),
        "adds_up": abs(whole - best.seconds) <= 0.01 * best.seconds,
        "layouts": [compared(rank, estimate, slowest) for rank, estimate in enumerate(document.best, 1)]
        if others
        else [],
    }
    return Section("time", "Where the time goes", "plan_time.html", data)


def rows(best: Estimate) -> list[dict[str, object]]:
    """Every part that takes time; the bars start where the one before ends."""
    bars, before = [], 0.0
    for number, key, seconds in parts(best.parts):
        bars.append(
            {
                "number": number,
                "name": PARTS.get(key, key.replace("_", " ")),
                "seconds": short_time(seconds),
                "share": share(seconds / best.seconds),
                "start": before / best.seconds,
                "width": seconds / best.seconds,
            }
        )
        before += seconds
    return bars


def parts(breakdown: Mapping[str, float]) -> list[tuple[int, str, float]]:
    """(colour, key, seconds) of the parts above nothing, in the order of PARTS; unknown ones last."""
    order = [*PARTS, *(key for key in breakdown if key not in PARTS)]
    return [
        (min(number, len(PARTS) - 1), key, breakdown[key])
        for number, key in enumerate(order)
        if breakdown.get(key, 0.0) > 0
    ]


def compared(rank: int, estimate: Estimate, slowest: float) -> dict[str, object]:
    """A layout's step as one bar, on the scale of the slowest."""
    return {
        "rank": rank,
        "name": " · ".join(with_precision(estimate.layout)),
        "seconds": short_time(estimate.seconds),
        "pieces": [
            {"number": number, "share": seconds / slowest, "said": f"{PARTS.get(key, key)} {short_time(seconds)}"}
            for number, key, seconds in parts(estimate.parts)
        ],
    }
