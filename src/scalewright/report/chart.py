"""A chart over the steps of a run: lines as SVG, everything with text as HTML, so that it fits any width.

    ┌ 3.0 ┬───────────────────────┐   svg   1000 × 1000 units stretched over the box; strokes keep their width
    │ 2.5 │ ╲__                   │   ticks placed in percent; they keep their size
    │ 2.0 │    ‾‾‾──────          │   data  the same points as JSON, for the script's cursor and zoom
    └─────┴───────────────────────┘
          0   200   400   600

It is readable without the script, which only adds a cursor, a zoom and the values under them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from scalewright.report.series import Array, Kind, frame, say, say_tick, thin, ticks, without_outliers

SIZE = 1000  # units of the drawing, both ways
Style = Literal["raw", "line", "valid"]


@dataclass(frozen=True)
class Series:
    """One line of a chart; NaN values are gaps."""

    label: str
    style: Style
    steps: Array
    values: Array


@dataclass(frozen=True)
class Mark:
    """A moment that concerns every chart: a resume, a fault, a value that was not finite."""

    step: float
    kind: Literal["resume", "fault", "nonfinite", "rewind"]


@dataclass(frozen=True)
class Chart:
    """A chart's title, lines and frame; lone outliers of `raw` lines and a `steep` start may leave it."""

    id: str
    title: str
    kind: Kind
    series: tuple[Series, ...]
    steps: tuple[float, float]  # of the first and last step of the run: all charts share their axis
    unit: str = ""
    note: str = ""
    from_zero: bool = False
    wide: bool = False
    steep: bool = False
    marks: tuple[Mark, ...] = ()


class Tick(NamedTuple):
    """A line of the grid: where, as a share of the frame, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart in the words of the template."""

    chart: Chart
    paths: list[dict[str, str]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    marks: list[dict[str, object]]
    description: str
    outside: int  # points above or below the frame
    data: dict[str, object] = field(default_factory=dict)


def draw(chart: Chart) -> Drawing:
    """Lays a chart out; all positions are shares of the frame."""
    x_low, x_high = chart.steps
    whole = [descent(line) if chart.steep else line.values for line in chart.series if line.style != "raw"]
    raw = [line.values for line in chart.series if line.style == "raw"]
    clipped = np.concatenate(raw) if raw else None
    if not whole and clipped is not None:
        whole = [without_outliers(clipped[np.isfinite(clipped)])]
    low, high = frame(whole, chart.from_zero, clipped)
    thinned = [(line, *thin(line.steps, line.values)) for line in chart.series]

    def x(step: float) -> float:
        return (step - x_low) / (x_high - x_low)

    def y(value: float) -> float:
        return (high - value) / (high - low)

    paths = [lines(line, [x(s) for s in steps], [y(v) for v in values]) for line, steps, values in thinned]
    return Drawing(
        chart=chart,
        paths=paths,
        x_ticks=[Tick(x(t), say_tick(t, "step")) for t in ticks(x_low, x_high) if t == int(t)],
        y_ticks=[Tick(1 - y(t), say_tick(t, chart.kind)) for t in ticks(low, high, 6 if chart.wide else 4)],
        marks=[{"at": x(m.step), "step": m.step, "kind": m.kind} for m in chart.marks if x_low <= m.step <= x_high],
        description=describe(chart),
        outside=sum(int(((v < low) | (v > high)).sum()) for v in raw),
        data={
            "id": chart.id,
            "kind": chart.kind,
            "x": [x_low, x_high],
            "y": [low, high],
            "zero": chart.from_zero,
            "wide": chart.wide,
            "series": [
                {"label": line.label, "style": line.style, "x": plain(steps), "y": plain(values)}
                for line, steps, values in thinned
            ],
        },
    )


def descent(line: Series) -> Array:
    """A long line without its highest few percent: a loss's first steps would flatten all that follows."""
    finite = line.values[np.isfinite(line.values)]
    return finite if len(finite) < 200 else finite[finite <= np.percentile(finite, 97)]


def lines(line: Series, xs: list[float], ys: list[float]) -> dict[str, str]:
    """The path of one series; for validations, and for lines too short to be one, also its dots."""
    dotted = line.style == "valid" or int(np.isfinite(line.values).sum()) == 1
    return {"style": line.style, "d": path(xs, ys), "dots": path(xs, ys, dots=True) if dotted else ""}


def path(xs: list[float], ys: list[float], dots: bool = False) -> str:
    """SVG path data in drawing units; a gap starts a new piece, a piece of one point is a dot (no length).

    With `dots` every point is a piece of its own.
    """
    out: list[str] = []
    pen_down = False
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if not math.isfinite(y):
            pen_down = False
            continue
        alone = dots or index + 1 == len(ys) or not math.isfinite(ys[index + 1])
        out.append(f"{'L' if pen_down else 'M'}{_number(x)} {_number(y)}")
        if alone and not pen_down:
            out.append("h0")
        pen_down = not dots
    return "".join(out)


def _number(share: float) -> str:
    return f"{max(min(share, 9.0), -9.0) * SIZE:.2f}".rstrip("0").rstrip(".")


def plain(values: Array) -> list[float | None]:
    """Numbers for JSON: seven digits are more than a tooltip shows; a gap is null."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float:
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.7g}")


def describe(chart: Chart) -> str:
    """The chart in a sentence, for those who can't see it."""
    parts = []
    for line in chart.series:
        finite = line.values[np.isfinite(line.values)]
        if len(finite):
            span = f"from {say(float(finite[0]), chart.kind)} to {say(float(finite[-1]), chart.kind)}"
            low, high = (say(float(value), chart.kind) for value in (finite.min(), finite.max()))
            parts.append(f"{line.label} {span}, lowest {low}, highest {high}")
    first, last = (say(step, "step") for step in chart.steps)
    return f"{chart.title} over steps {first} to {last}: " + ("; ".join(parts) or "no values") + "."
