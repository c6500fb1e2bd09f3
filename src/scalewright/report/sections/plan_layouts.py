"""The best layouts beside each other, and why the nearest losers lose."""

from __future__ import annotations

from typing import Any

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layout_words import layout_words
from scalewright.report.page import Section
from scalewright.spec.words import count, decimal, share, short_time

MOST_LINES = 40


def section(document: PlanDocument) -> Section | None:
    """The table and the lines; None for a single layout that was given."""
    if not document.searched:
        return None
    asked = [document.read.part("asked")] if document.read.data.get("asked") else []
    known = document.best[0].read.text("untrainable") if document.best else ""  # said once is enough
    lost = [why(one, known) for one in document.why_not[:MOST_LINES]]
    data = {
        "rows": [row(rank, one, document.best[0]) for rank, one in enumerate(document.best, 1)],
        "asked": [why(one, known) for one in asked],
        "why_not": lost,
        "left_out": max(len(document.why_not) - MOST_LINES, 0),
        "written": written(document),
        "objective": aim(document),
        "counts": counts(document),
    }
    return Section("layouts", "Layouts", "plan_layouts.html", data)


def counts(document: PlanDocument) -> list[str]:
    """How many were looked at."""
    evaluated, feasible = document.read.number("evaluated"), document.read.number("feasible")
    objective, headroom = document.read.text("objective"), document.read.number("headroom")
    return [
        part
        for part in (
            f"{evaluated:,.0f} layouts evaluated" if evaluated is not None else "",
            f"{feasible:,.0f} fit" if feasible is not None else "",
            f"best by {objective}" if objective else "",
            f"{share(headroom)} of the memory kept free" if headroom else "",
        )
        if part
    ]


def aim(document: PlanDocument) -> str:
    """The column of what was asked for, where that isn't the time."""
    objective = document.read.text("objective")
    return "" if objective in ("", "time") else document.read.text("objective_unit") or objective


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
        "value": decimal(one.read.number("objective_value"), 4),
        "bottleneck": one.read.text("bottleneck"),
        "untrainable": untrainable(one.read, best.read.text("untrainable") if rank > 1 else ""),
    }


def why(one: Reader, known: str) -> dict[str, str]:
    """A loser: what is different about it, its layout, and what costs it."""
    words = " · ".join(layout_words(one.part("layout").data)) if one.data.get("layout") else ""
    change, said = one.text("change"), one.text("why")
    return {
        "name": change or words,
        "layout": words if change else "",
        "text": said.removeprefix(f"{change}: "),
        "untrainable": untrainable(one, known),
    }


def untrainable(one: Reader, known: str) -> str:
    """Why `train` can't run it yet; empty where the best layout has the same reason."""
    found = one.text("untrainable")
    return "" if found == known else found


def written(document: PlanDocument) -> str:
    """Which run file was written, and of which layout."""
    file = document.read.text("run_file")
    if not file:
        return ""
    layout = document.read.part("run_file_layout").data
    of = f" of {' · '.join(layout_words(layout))}" if layout else ""
    cannot = document.read.text("run_file_untrainable")
    return f"Written as {file}: the run file{of}." + (f" Not trainable yet: {cannot}." if cannot else "")
