"""The best layouts as one matrix, what differs from the first in bold, and why the nearest losers lose.

all: bf16 · micro-batch 1
#   tp   pp                 dp   ZeRO   step     memory     runs in
1   1    1                  64   2      7.91 s   66.1 GiB   Scalewright, torchtitan
2   1    **2 × 4 zb-int.**  32   2      7.99 s   55.6 GiB   Scalewright

And their step time against memory, beside the layouts that no other beats in both:

step |  o                 o    a layout of the Pareto set
     |     o (1)          (1)  a best layout
     |          o  (2)  |      the line: what a device can allocate
     +------------------- GiB
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import recompute_words, runs_in, untrainable, with_precision
from scalewright.report.page import Section
from scalewright.report.present.plan import aim
from scalewright.report.series import say_tick, ticks
from scalewright.spec.common.formatting import decimal, gib, share, short_time


def layouts_section(document: PlanDocument) -> Section | None:
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


MOST_POINTS = 600
WIDE, HIGH = 0.03, 0.06  # of the frame: a numbered dot


def pareto_section(document: PlanDocument) -> Section | None:
    """The plot; None with fewer than two layouts whose memory is known."""
    front = sorted((estimate for estimate in document.pareto if estimate.peak_gib is not None), key=memory)[
        :MOST_POINTS
    ]
    best = [estimate for estimate in document.best if estimate.peak_gib is not None]
    xs, ys = [memory(estimate) for estimate in (*front, *best)], [estimate.seconds for estimate in (*front, *best)]
    if len({*zip(xs, ys, strict=True)}) < 2:
        return None
    usable = document.device.number("usable_gib")
    if usable is not None and usable < 1.6 * max(xs):
        xs.append(usable)
    x_frame, y_frame = framed(xs), framed(ys)
    points = [point(estimate, x_frame, y_frame, 0) for estimate in front]
    points += together([point(estimate, x_frame, y_frame, rank) for rank, estimate in enumerate(best, 1)])
    line = (usable - x_frame[0]) / (x_frame[1] - x_frame[0]) if usable is not None else None
    data = {
        "points": points,
        "path": staircase(points[: len(front)]),
        "x_ticks": [{"at": at(t, x_frame), "text": say_tick(t, "gib")} for t in ticks(*x_frame, 6)],
        "y_ticks": [{"at": at(t, y_frame), "text": say_tick(t, "seconds")} for t in ticks(*y_frame, 5)],
        "limit": line if line is not None and 0 <= line <= 1 else None,
        "limit_text": f"{decimal(usable, 3)} GiB usable" if usable is not None else "",
        "several": len(best) > 1,
        "front": len(front),
    }
    return Section("pareto", "Time against memory", "plan_pareto.html", data)


def memory(estimate: Estimate) -> float:
    return estimate.peak_gib or 0.0


def framed(values: list[float]) -> tuple[float, float]:
    """The axis: all values with a margin, not below nothing."""
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.1 * high or 1.0
    return max(low - margin, 0.0), high + margin


def at(value: float, frame: tuple[float, float]) -> float:
    return (value - frame[0]) / (frame[1] - frame[0])


@dataclass(frozen=True)
class Dot:
    """A layout on the plot, as shares of the frame; `rank` 0 belongs to the Pareto set."""

    x: float
    y: float
    rank: int
    name: str
    value: str
    label: str = ""


def point(estimate: Estimate, xs: tuple[float, float], ys: tuple[float, float], rank: int) -> Dot:
    """A dot with its label."""
    value = f"{short_time(estimate.seconds)} a step, {decimal(estimate.peak_gib, 3)} GiB"
    name = " · ".join(with_precision(estimate.layout))
    return Dot(at(memory(estimate), xs), 1 - at(estimate.seconds, ys), rank, name, value)


def together(points: list[Dot]) -> list[Dot]:
    """Numbered dots that would cover each other joined to one, with all their numbers and names."""
    heads: list[Dot] = []
    for dot in points:
        near = (at for at, head in enumerate(heads) if abs(head.x - dot.x) < WIDE and abs(head.y - dot.y) < HIGH)
        if (place := next(near, None)) is None:
            heads.append(replace(dot, label=str(dot.rank)))
        else:
            head = heads[place]
            name = f"{head.name}\n{dot.rank}: {dot.name}, {dot.value}"
            heads[place] = replace(head, label=f"{head.label} {dot.rank}", name=name)
    return heads[::-1]  # the best is drawn last, above the others


def staircase(points: list[Dot]) -> str:
    """SVG path of the front: between two layouts nothing is gained."""
    places = [(f"{1000 * dot.x:.2f}", f"{1000 * dot.y:.2f}") for dot in points]
    return "".join(f"H{x}V{y}" if index else f"M{x} {y}" for index, (x, y) in enumerate(places))
