"""Step time against memory: the layouts that no other beats in both, and the best ones among them.

step |  o                 o    a layout of the Pareto set
     |     o (1)          (1)  a best layout
     |          o  (2)  |      the line: what a device can allocate
     +------------------- GiB
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.layouts import with_precision
from scalewright.report.page import Section
from scalewright.report.series import say_tick, ticks
from scalewright.spec.common.formatting import decimal, short_time

MOST_POINTS = 600
WIDE, HIGH = 0.03, 0.06  # of the frame: a numbered dot


def section(document: PlanDocument) -> Section | None:
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
        place = next(near, None)
        if place is None:
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
