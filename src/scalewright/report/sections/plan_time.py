"""Where the step's time goes, part by part to its sum, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layout_words import layout_words
from scalewright.report.page import Section
from scalewright.spec.words import share, short_time

# key -> its word; the order is that of the bars
PARTS = {
    "compute": "compute",
    "recompute": "recomputation",
    "tp_exposed": "tensor parallelism, exposed",
    "cp_exposed": "context parallelism, exposed",
    "ep_exposed": "exchange with experts, exposed",
    "dp_exposed": "gradients and parameters, exposed",
    "pp_bubble": "pipeline's fill and drain",
    "pp_exposed": "pipeline's messages, exposed",
    "optimizer": "optimizer",
    "other": "host, stragglers and the rest",
}


def section(document: PlanDocument) -> Section | None:
    """The parts; None where the plan doesn't tell them."""
    best = document.first
    if best is None or not best.parts:
        return None
    others = document.best[1:]
    slowest = max(one.seconds for one in document.best)
    whole = sum(best.parts.values())
    data = {
        "rows": rows(best),
        "step": short_time(best.seconds),
        "sum": short_time(whole),
        "adds_up": abs(whole - best.seconds) <= 0.01 * best.seconds,
        "layouts": [compared(rank, one, slowest) for rank, one in enumerate(document.best, 1)]
        if others
        else [],
    }
    return Section("time", "Where the time goes", "plan_time.html", data)


def rows(best: Estimate) -> list[dict[str, Any]]:
    """Every part that takes time; the bars start where the one before ends."""
    found, before = [], 0.0
    for number, key, seconds in parts(best.parts):
        found.append(
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
    return found


def parts(breakdown: Mapping[str, float]) -> list[tuple[int, str, float]]:
    """(colour, key, seconds) of the parts above nothing, in the order of PARTS; unknown ones last."""
    order = [*PARTS, *(key for key in breakdown if key not in PARTS)]
    return [
        (min(number, len(PARTS) - 1), key, breakdown[key])
        for number, key in enumerate(order)
        if breakdown.get(key, 0.0) > 0
    ]


def compared(rank: int, one: Estimate, slowest: float) -> dict[str, Any]:
    """A layout's step as one bar, on the scale of the slowest."""
    return {
        "rank": rank,
        "name": " · ".join(layout_words(one.layout)),
        "seconds": short_time(one.seconds),
        "pieces": [
            {
                "number": number,
                "share": seconds / slowest,
                "said": f"{PARTS.get(key, key)} {short_time(seconds)}",
            }
            for number, key, seconds in parts(one.parts)
        ],
    }


def what_if_section(document: PlanDocument) -> Section | None:
    """The changes that the planner tried on the layout, as bars to both sides of nothing."""
    best = document.first
    found = [] if best is None else [row for row in best.read.parts("what_if") if row.text("change")]
    gains = [gain(row) for row in found]
    if not found:
        return None
    low, high = min(0.0, *gains), max(0.0, *gains)
    width = (high - low) or 1.0
    data = {
        "zero": -low / width,
        "rows": [
            {
                "change": row.text("change").partition(", ")[0],
                "note": row.text("change").partition(", ")[2],
                "gain": f"{value:+.1f}%".replace("-", "−"),
                "step": short_time(row.number("step_time_s")),
                "start": (min(value, 0.0) - low) / width,
                "width": abs(value) / width,
                "kind": "gain" if value > 0 else "loss",
            }
            for row, value in zip(found, gains, strict=True)
        ],
    }
    return Section("what-if", "What would help", "plan_what_if.html", data)


def gain(row: Reader) -> float:
    """Percent more tokens per second and device."""
    return row.number("gain_pct") or 0.0
