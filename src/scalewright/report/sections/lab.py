"""A lab's pictures: lines over an axis, measured ones whole and the formula's dashed; time lines of its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.report.page import Section
from scalewright.report.present.explain import quantity
from scalewright.report.sections.serving_curves import log_ticks
from scalewright.report.series import ticks

MARGIN = 0.06  # of the frame, left free around the points
COLOURS = 7  # of report.css that tell lines apart
SHADES = ("blue", "sky blue", "orange", "yellow", "purple", "vermilion", "grey", "brown")  # of its parts, in words


def pictures(answer: Mapping[str, Any]) -> list[Section]:
    """A section of plots, and one for each time line."""
    plots = [plot(picture) for picture in answer["pictures"] if picture["kind"] == "curves"]
    sections = [Section("curves", "In pictures", "lab_curves.html", {"plots": plots})] if plots else []
    for number, picture in enumerate(picture for picture in answer["pictures"] if picture["kind"] == "lanes"):
        rows = [{**row, "words": f"{row['name']}: {len(row['pieces'])} pieces"} for row in picture["rows"]]
        rows = [{**row, "pieces": [{**p, "colour": p["part"]} for p in row["pieces"]]} for row in rows]
        kinds = {p["part"]: p["words"].partition(" of ")[0] for row in picture["rows"] for p in row["pieces"]}
        facts = [f"{SHADES[part]}: {kind}" for part, kind in sorted(kinds.items())]
        data = {"lanes": rows, "length": picture["length"], "facts": facts}
        sections.append(Section(f"lanes-{number}", picture["title"], "chaos.html", data))
    return sections


def plot(picture: Mapping[str, Any]) -> dict[str, Any]:
    """A plot of lines, in shares of its frame."""
    points = [point for line in picture["lines"] for point in line["points"]]
    x_axis = axis([x for x, _ in points], "x" in picture["log"])
    y_axis = axis([y for _, y in points], "y" in picture["log"])
    lines = [
        {
            "name": line["name"], "expected": line["expected"], "colour": number % COLOURS,
            "path": " ".join(
                f"{'L' if at else 'M'}{1000 * x_axis(x):.1f} {1000 - 1000 * y_axis(y):.1f}"
                for at, (x, y) in enumerate(sorted(line["points"]))
            ),
            "dots": [
                {"x": x_axis(x), "y": 1 - y_axis(y),
                 "words": f"{line['name']}: {quantity(y, picture['units'][1])} at {quantity(x, picture['units'][0])}"}
                for x, y in (() if line["expected"] else line["points"])
            ],
        }
        for number, line in enumerate(picture["lines"])
    ]  # fmt: skip
    return {
        "title": picture["title"], "x": picture["x"], "y": picture["y"], "lines": lines,
        "x_ticks": x_axis.marks(picture["units"][0]), "y_ticks": y_axis.marks(picture["units"][1]),
    }  # fmt: skip


def axis(values: Sequence[float], logarithmic: bool) -> Axis:
    """The frame of some values; a logarithmic one leaves out what is not above zero."""
    if logarithmic and (above := [value for value in values if value > 0]):
        low, high = min(above), max(above)
        low, high = (low / 2, high * 2) if low == high else (low, high)
        room = (high / low) ** MARGIN
        return Axis(low / room, high * room, True)
    low, high = min([0.0, *values]), max(values)
    high = high if high > low else low + 1.0
    return Axis(low, high + MARGIN * (high - low), False)


class Axis:
    """Where a value stands between the ends of a frame: 0 to 1."""

    def __init__(self, low: float, high: float, logarithmic: bool) -> None:
        self.low, self.high, self.logarithmic = low, high, logarithmic

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self, unit: str) -> list[dict[str, Any]]:
        """Ticks with their words."""
        values = log_ticks(self.low, self.high) if self.logarithmic else ticks(self.low, self.high, 5)
        return [{"at": self(value), "text": quantity(value, unit)} for value in values]
