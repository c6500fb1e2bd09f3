"""Numbers made ready for a line of about a thousand pixels (smoothed, thinned, framed), and its axes.

Thinning keeps the lowest and the highest *real* point of each bucket, so that a spike of one step in a
hundred thousand is still on the page, at its step and with its value:

    · ·▪· · ·│▪· · · ·│· · ▪ ·        ▪ kept: minimum and maximum of each bucket, in their order
    ·▪ · ·· ·│· · ▪· ·│▪·· ·  ·

Axes: round numbers at which to draw a line, and how each kind of number is written. The page's script has the
same few rules (`assets/report.js`), for the axes after a zoom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalewright.spec.common.formatting import count, decimal, gib, share, short_time

Array = NDArray[np.float64]


def smooth(values: Array, span: float) -> Array:
    """The exponential moving average over about `span` values; NaN stays NaN and is not averaged.

    avg += a (x - avg), a = 2 / (1 + min(span, 1 + t/8)): over fewer values at the start, where a loss falls
    so fast that a longer average would lag behind it.
    """
    average, seen = 0.0, 0
    out = np.full(len(values), np.nan)
    for index, value in enumerate(values.tolist()):
        if value == value:
            average += (value - average) * 2 / (1 + min(span, 1 + seen / 8))
            seen += 1
            out[index] = average
    return out


def rolling_median(steps: Array, values: Array, width: int, points: int = 1000) -> tuple[Array, Array]:
    """The median of `width` values around each step, or around `points` of them; blind to lone outliers.

    A step without a value of its own is a gap; where only some steps are looked at, one with none around it.
    """
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), points)).astype(int))
    medians = np.full(len(chosen), np.nan)
    for index, position in enumerate(chosen.tolist()):
        window = values[max(position - width // 2, 0) : position + width // 2 + 1]
        window = window[np.isfinite(window)]
        if len(window) and (len(chosen) < len(values) or np.isfinite(values[position])):
            medians[index] = np.median(window)
    return steps[chosen], medians


def thin(steps: Array, values: Array, buckets: int = 500) -> tuple[Array, Array]:
    """At most about two points a bucket, extremes and gaps kept.

    Short series come back whole. A non-finite stretch keeps one NaN, so that the line breaks there.
    """
    if len(values) <= 2 * buckets:
        return steps, values
    edges = np.linspace(0, len(values), buckets + 1).astype(int)
    kept: list[int] = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[start:stop]
        finite = np.flatnonzero(np.isfinite(part))
        chosen = set()
        if len(finite):
            chosen = {int(finite[part[finite].argmin()]), int(finite[part[finite].argmax()])}
        if len(finite) < len(part):
            chosen.add(int(np.flatnonzero(~np.isfinite(part))[0]))
        kept += [start + index for index in sorted(chosen)]
    kept = sorted({0, *kept, len(values) - 1})
    return steps[kept], values[kept]


def frame(lines: list[Array], from_zero: bool, clip: Array | None = None) -> tuple[float, float]:
    """The lowest and highest value that a chart shows: all of `lines`, and of `clip` all but lone outliers.

    A first step that compiles takes a hundred times as long as any other; drawn whole it would hide them all.
    """
    parts = [line[np.isfinite(line)] for line in lines]
    if clip is not None:
        parts.append(without_outliers(clip[np.isfinite(clip)]))
    values = np.concatenate([part for part in parts if len(part)] or [np.array([0.0, 1.0])])
    low, high = float(values.min()), float(values.max())
    if from_zero:
        low = min(low, 0.0)
    if high == low:
        margin = abs(high) * 0.05 or 1.0
        return (low if from_zero else low - margin), high + margin
    margin = 0.06 * (high - low)
    return (low if from_zero and low >= 0 else low - margin), high + margin


def without_outliers(values: Array) -> Array:
    """Values within 1.5 times the 1st-to-99th-percentile range around its middle; all of a short series."""
    if len(values) < 20:
        return values
    low, high = np.percentile(values, [1, 99])
    middle, reach = (low + high) / 2, 1.5 * (high - low)
    inside: Array = values[np.abs(values - middle) <= reach] if reach > 0 else values[values == middle]
    return inside


SAY: dict[str, Callable[[float], str]] = {
    "number": decimal, "count": count, "seconds": short_time, "percent": share, "gib": gib, "step": "{:,.0f}".format,
}  # fmt: skip
Kind = Literal["number", "count", "seconds", "percent", "gib", "step"]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About `about` round values from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 9.3)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.75)
    first, last = math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9)
    return [float(f"{index * unit:.12g}") for index in range(first, last + 1)]


def say(value: float, kind: Kind) -> str:
    """A value with its unit, in four digits."""
    return SAY[kind](value)


def say_tick(value: float, kind: Kind) -> str:
    """The same on an axis, where shorter is better: no digits that are all zeros."""
    if kind in ("percent", "gib"):
        return f"{100 * value:.6g}%" if kind == "percent" else f"{value:.6g}"
    if kind != "number" or value == 0:
        return "0" if value == 0 else say(value, kind)
    return f"{value:.6g}" if 1e-3 <= abs(value) < 1e5 else _exponent(value)


def _exponent(value: float) -> str:
    mantissa, _, power = f"{value:.6e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"
