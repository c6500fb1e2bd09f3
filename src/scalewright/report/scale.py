"""Axes: round numbers at which to draw a line, and how each kind of number is written.

The page's script has the same few rules (`assets/report.js`), for the axes after a zoom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from scalewright.spec.common.formatting import count, decimal, gib, share, short_time

SAY: dict[str, Callable[[float], str]] = {
    "number": decimal,
    "count": count,
    "seconds": short_time,
    "percent": share,
    "gib": gib,
    "step": "{:,.0f}".format,
}
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
    if kind == "percent":
        return f"{100 * value:.6g}%"
    if kind == "gib":
        return f"{value:.6g}"
    if kind == "number":
        return "0" if value == 0 else f"{value:.6g}" if 1e-3 <= abs(value) < 1e5 else _exponent(value)
    return "0" if value == 0 else say(value, kind)


def _exponent(value: float) -> str:
    mantissa, _, power = f"{value:.6e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"
