"""The best layouts as one matrix, what differs from the first in bold, and why the nearest losers lose.

all: bf16 · micro-batch 1
#   tp   pp                 dp   ZeRO   step     memory     runs in
1   1    1                  64   2      7.91 s   66.1 GiB   Scalewright, torchtitan
2   1    **2 × 4 zb-int.**  32   2      7.99 s   55.6 GiB   Scalewright
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import recompute_words, runs_in, untrainable
from scalewright.report.page import Section
from scalewright.report.present.plan import aim
from scalewright.spec.common.formatting import decimal, gib, share, short_time


def section(document: PlanDocument) -> Section | None:
    """The table and the lines; None for a single layout that was given."""
    if not document.searched:
        return None
    columns, shared = matrix(document.best)
    data = {
        "rows": [row(rank, estimate, document.best[0], columns) for rank, estimate in enumerate(document.best, 1)],
        "columns": columns,
        "shared": shared,
        "objective": aim(document),
        "counts": counts(document),
    }
    return Section("layouts", "Best layouts", "plan_layouts.html", data)


def counts(document: PlanDocument) -> list[str]:
    """The numbers of layouts evaluated and fitting, the objective, the headroom."""
    evaluated, feasible = document.read.number("evaluated"), document.read.number("feasible")
    objective, headroom = document.read.text("objective"), document.read.number("headroom")
    parts = [
        f"{evaluated:,.0f} layouts evaluated" if evaluated is not None else "",
        f"{feasible:,.0f} fit" if feasible is not None else "",
        f"best by {objective}" if objective else "",
        f"{share(headroom)} of the memory kept free" if headroom else "",
    ]
    return [part for part in parts if part]


def axes(estimate: Estimate) -> dict[str, str]:
    """A layout in a cell per axis; `–` where an axis isn't in use."""
    layout, size = estimate.layout, estimate.size
    chunks, copies = size("virtual_stages"), size("dp_replicate")
    cells = {
        "tp": size("tp"), "cp": size("cp"), "ep": size("ep"), "etp": size("etp"), "pp": size("pp"),
        "schedule": (str(layout.get("schedule", "")) + (f" × {chunks}" if chunks > 1 else ""))
        if size("pp") > 1 else "",
        "dp": f"{size('dp')}" + (f" in {copies} replicas" if copies > 1 else ""),
        "ZeRO": f"{layout.get('zero_stage') or 0}", "micro-batch": f"{size('micro_batch')}",
        "recompute": recompute_words(layout.get("recompute")).removeprefix("recompute "),
        "offload": "" if layout.get("offload") in (None, "none") else layout["offload"],
        "precision": "" if layout.get("precision") in (None, "auto") else layout["precision"],
    }  # fmt: skip
    return {name: "–" if value in (1, "") else str(value) for name, value in cells.items()}


def matrix(layouts: Sequence[Estimate]) -> tuple[list[str], list[str]]:
    """(columns in which the layouts differ, what all of them share in words); all in use for a single one."""
    cells = [axes(estimate) for estimate in layouts]
    if not cells:
        return [], []
    alike = {name for name, value in cells[0].items() if all(other[name] == value for other in cells)}
    used = {name: value for name, value in cells[0].items() if value != "–"}
    if len(cells) == 1:
        return [*used], []
    shared = [f"{name} {value}" if name != "precision" else value for name, value in used.items() if name in alike]
    return [name for name in cells[0] if name not in alike], shared


def row(rank: int, estimate: Estimate, best: Estimate, columns: Sequence[str]) -> dict[str, object]:
    """A layout of the matrix; times also as what they lose to the best."""
    behind = estimate.seconds / best.seconds - 1
    low, high = estimate.low, estimate.high
    cells, first = axes(estimate), axes(best)
    return {
        "rank": rank, "cells": [(name, cells[name], cells[name] != first[name]) for name in columns],
        "step": short_time(estimate.seconds), "behind": f"{100 * behind:+.1f}%".replace("-", "−") if rank > 1 else "",
        "band": _band(short_time(low), short_time(high)) if low and high else "",
        "mfu": share(estimate.read.number("mfu")), "memory": gib(estimate.peak_gib),
        "value": decimal(estimate.read.number("objective_value"), 4), "bottleneck": estimate.read.text("bottleneck"),
        "runs_in": ", ".join(runs_in(estimate)) or "none of the trainers that are known",
        "untrainable": untrainable(estimate),
    }  # fmt: skip


def _band(low: str, high: str) -> str:
    """`6.42 – 7.96 s`: a unit that both ends have once, so that a phone's column holds it in a line."""
    number, _, unit = low.partition(" ")
    return f"{number} – {high}" if high.endswith(f" {unit}") else f"{low} – {high}"
