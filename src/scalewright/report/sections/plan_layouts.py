"""The best layouts beside each other, and why the nearest losers lose."""

from __future__ import annotations

from typing import Any

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layout_words import layout_words
from scalewright.report.page import Section
from scalewright.spec.words import count, decimal, share, short_time

REASONS = ("why", "reason", "cost", "costs", "says", "what")
MOST_LINES = 40


def section(document: PlanDocument) -> Section | None:
    """The table and the lines; None for a single layout that was given."""
    if not document.searched:
        return None
    lost = [
        line for line in (why(one) for one in document.why_not[:MOST_LINES]) if line["text"] or line["name"]
    ]
    data = {
        "rows": [row(rank, one, document.best[0]) for rank, one in enumerate(document.best, 1)],
        "why_not": lost,
        "left_out": max(len(document.why_not) - MOST_LINES, 0),
        "run_file": document.read.text("run_file"),
        "counts": counts(document),
    }
    return Section("layouts", "Layouts", "plan_layouts.html", data)


def counts(document: PlanDocument) -> list[str]:
    """How many were looked at."""
    evaluated, feasible = document.read.number("evaluated"), document.read.number("feasible")
    objective = document.read.text("objective")
    return [
        part
        for part in (
            f"{evaluated:,.0f} layouts evaluated" if evaluated is not None else "",
            f"{feasible:,.0f} fit" if feasible is not None else "",
            f"ordered by {objective}" if objective else "",
        )
        if part
    ]


def row(rank: int, one: Estimate, best: Estimate) -> dict[str, Any]:
    """A layout of the table; times also as what they lose to the best."""
    behind = one.seconds / best.seconds - 1
    band = f"{short_time(one.low)} – {short_time(one.high)}" if one.low and one.high else ""
    return {
        "rank": rank,
        "words": layout_words(one.layout),
        "step": short_time(one.seconds),
        "behind": f"{100 * behind:+.1f}%".replace("-", "−") if rank > 1 else "",
        "band": band,
        "tokens": f"{count(one.read.number('tokens_per_s'))}/s",
        "mfu": share(one.read.number("mfu")),
        "memory": f"{decimal(one.peak_gib, 3)} GiB",
        "bottleneck": one.read.text("bottleneck"),
        "trainable": one.read.data.get("trainable"),
        "untrainable": one.read.text("untrainable"),
    }


def why(one: Reader) -> dict[str, str]:
    """A loser: its layout or name, and what costs it."""
    layout = one.data.get("layout")
    name = " · ".join(layout_words(layout)) if isinstance(layout, dict) else ""
    said = [str(one.data[key]) for key in REASONS if isinstance(one.data.get(key), str)]
    return {"name": name or one.text("change") or one.text("name"), "text": "; ".join(said)}
