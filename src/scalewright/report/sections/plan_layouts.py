"""The best layouts as one matrix, what differs from the first in bold, and why the nearest losers lose.

all: bf16 · micro-batch 1
#   tp   pp                 dp   ZeRO   step     memory     runs in
1   1    1                  64   2      7.91 s   66.1 GiB   Scalewright, torchtitan
2   1    **2 × 4 zb-int.**  32   2      7.99 s   55.6 GiB   Scalewright
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.report.document import Estimate, PlanDocument, Reader
from scalewright.report.layout_words import layout_words, recompute_words
from scalewright.report.page import Section
from scalewright.report.trainers import is_ours, runs_in, untrainable
from scalewright.spec.words import decimal, share, short_time

MOST_LINES = 40
OPEN_LINES = 5  # of why_not; the rest is folded


def section(document: PlanDocument) -> Section | None:
    """The table and the lines; None for a single layout that was given."""
    if not document.searched:
        return None
    asked = [document.read.part("asked")] if document.read.data.get("asked") else []
    ours = document.first is None or is_ours(document.first)
    lost = [why(one, ours) for one in document.why_not[:MOST_LINES]]
    columns, shared = matrix(document.best)
    data = {
        "rows": [row(rank, one, document.best[0], columns) for rank, one in enumerate(document.best, 1)],
        "columns": columns,
        "shared": shared,
        "beyond": [further(one) for one in document.read.parts("beyond")],
        "asked": [why(one, ours) for one in asked],
        "why_not": lost,
        "open": OPEN_LINES,
        "left_out": max(len(document.why_not) - MOST_LINES, 0),
        "written": written(document),
        "objective": aim(document),
        "counts": counts(document),
    }
    return Section("layouts", "Best layouts", "plan_layouts.html", data)


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


def axes(one: Estimate) -> dict[str, str]:
    """What a layout is, a cell an axis; `–` where an axis isn't in use."""
    layout, size = one.layout, one.size
    chunks, copies = size("virtual_stages"), size("dp_replicate")
    cells = {
        "tp": size("tp"), "cp": size("cp"), "ep": size("ep"), "etp": size("etp"), "pp": size("pp"),
        "schedule": (str(layout.get("schedule", "")) + (f" × {chunks}" if chunks > 1 else ""))
        if size("pp") > 1 else "",
        "dp": f"{size('dp')}" + (f" in {copies} replicas" if copies > 1 else ""),
        "ZeRO": f"{layout.get('zero_stage') or 0}",
        "micro-batch": f"{size('micro_batch')}",
        "recompute": recompute_words(layout.get("recompute")).removeprefix("recompute "),
        "offload": "" if layout.get("offload") in (None, "none") else layout["offload"],
        "precision": "" if layout.get("precision") in (None, "auto") else layout["precision"],
    }  # fmt: skip
    return {name: "–" if value in (1, "") else str(value) for name, value in cells.items()}


def matrix(layouts: Sequence[Estimate]) -> tuple[list[str], list[str]]:
    """(columns in which the layouts differ, what all of them share in words); all in use for a single one."""
    found = [axes(one) for one in layouts]
    if not found:
        return [], []
    alike = {name for name, value in found[0].items() if all(other[name] == value for other in found)}
    if len(found) == 1:
        return [name for name, value in found[0].items() if value != "–"], []
    shared = [
        f"{name} {value}" if name != "precision" else value
        for name, value in found[0].items()
        if name in alike and value != "–"
    ]
    return [name for name in found[0] if name not in alike], shared


def row(rank: int, one: Estimate, best: Estimate, columns: Sequence[str]) -> dict[str, Any]:
    """A layout of the matrix; times also as what they lose to the best."""
    behind = one.seconds / best.seconds - 1
    band = _band(short_time(one.low), short_time(one.high)) if one.low and one.high else ""
    own, first = axes(one), axes(best)
    return {
        "rank": rank,
        "cells": [(name, own[name], own[name] != first[name]) for name in columns],
        "step": short_time(one.seconds),
        "behind": f"{100 * behind:+.1f}%".replace("-", "−") if rank > 1 else "",
        "band": band,
        "mfu": share(one.read.number("mfu")),
        "memory": f"{decimal(one.peak_gib, 3)} GiB",
        "value": decimal(one.read.number("objective_value"), 4),
        "bottleneck": one.read.text("bottleneck"),
        "runs_in": ", ".join(runs_in(one)) or "none of the trainers that are known",
        "untrainable": untrainable(one),
    }


def _band(low: str, high: str) -> str:
    """`6.42 – 7.96 s`: a unit that both ends have once, so that a phone's column holds it in a line."""
    number, _, unit = low.partition(" ")
    return f"{number} – {high}" if high.endswith(f" {unit}") else f"{low} – {high}"


def further(one: Reader) -> dict[str, str]:
    """A layout that the trainer can't run: what it needs, and what it would gain."""
    gain = one.number("gain_pct")
    return {
        "layout": " · ".join(layout_words(one.part("layout").data)),
        "needs": ", ".join(one.lines("needs")),
        "gain": "" if gain is None else f"{gain:+.1f}%".replace("-", "−"),
    }


def why(one: Reader, ours: bool) -> dict[str, str]:
    """A loser: what is different about it, its layout, and what costs it; `ours`: of a plan for `train`."""
    words = " · ".join(layout_words(one.part("layout").data)) if one.data.get("layout") else ""
    change, said = one.text("change"), one.text("why")
    return {
        "name": change or words,
        "layout": words if change else "",
        "text": said.removeprefix(f"{change}: "),
        "untrainable": one.text("untrainable") if ours else "",
    }


def written(document: PlanDocument) -> str:
    """Which run file was written, and of which layout."""
    file = document.read.text("run_file")
    if not file:
        return ""
    layout = document.read.part("run_file_layout").data
    of = f" of {' · '.join(layout_words(layout))}" if layout else ""
    cannot = document.read.text("run_file_untrainable")
    return f"Written as {file}: the run file{of}." + (f" Not trainable yet: {cannot}." if cannot else "")
