"""What an experiment found: values beside what a formula expects of them, and pictures.

    relative difference  |measured - expected| / |expected|  <=  tolerance      near
                          measured <= expected (1 + tolerance)                  at most
                          measured >= expected (1 - tolerance)                  at least

Counted values (bytes, messages, bits) are this program's, whoever else uses the machine. Those by a clock are `timed`:
on a busy machine they conclude nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Relation = Literal["near", "at most", "at least"]


@dataclass(frozen=True)
class Value:
    """A number that was measured, and what is expected; `because`: why the tolerance is what it is."""

    name: str
    measured: float
    expected: float
    unit: str  # B, B/s, FLOP/s, s, share, or what is counted
    formula: str
    tolerance: float = 0.0
    because: str = "counted"
    relation: Relation = "near"
    timed: bool = False

    @property
    def holds(self) -> bool:
        """Whether the measured number is what was expected, within the tolerance."""
        slack = self.tolerance * abs(self.expected)
        above, below = self.measured <= self.expected + slack, self.measured >= self.expected - slack
        return {"near": above and below, "at most": above, "at least": below}[self.relation]


@dataclass(frozen=True)
class Curve:
    """A line of a plot; `expected`: the formula's, dashed."""

    name: str
    points: Sequence[tuple[float, float]]
    expected: bool = False


def curves(
    title: str, x: str, y: str, lines: Sequence[Curve], units: tuple[str, str] = ("", ""), log: str = ""
) -> Mapping[str, Any]:
    """A plot of lines, with the names and units of its axes; `log`: those that are logarithmic, "x", "y" or "xy"."""
    drawn = [{"name": line.name, "points": [list(point) for point in line.points], "expected": line.expected}
             for line in lines]  # fmt: skip
    return {"kind": "curves", "title": title, "x": x, "y": y, "units": list(units), "log": log, "lines": drawn}


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str | float | int | None]]) -> Mapping[str, Any]:
    """A table; the first column names its rows."""
    return {"kind": "table", "title": title, "heads": list(heads), "rows": [list(row) for row in rows]}


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Mapping[str, Any]:
    """Bars beside each other: (name, length, the same in words)."""
    return {"kind": "bars", "title": title, "rows": [list(row) for row in rows]}


def lanes(title: str, rows: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], length: str) -> Mapping[str, Any]:
    """A time line for each row: pieces {left, width (shares of the whole), part (a colour), words}."""
    drawn = [{"name": name, "pieces": list(pieces)} for name, pieces in rows]
    return {"kind": "lanes", "title": title, "rows": drawn, "length": length}


@dataclass(frozen=True)
class Outcome:
    """All that an experiment found."""

    values: Sequence[Value]
    pictures: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    notes: Sequence[str] = ()  # what a reader should know of this machine's numbers
