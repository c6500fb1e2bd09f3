"""Changes of the speed: settings, apart from other hardware; changes that slow the step are folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.report.document import PlanDocument, Reader
from scalewright.report.page import Section
from scalewright.spec.common.formatting import short_time

GROUPS = {
    "setting": "What you can change",
    "hardware": "Other hardware",
    "": "What was tried",  # a plan of an older version, without kinds
}
LEAST = 0.05  # percent: less is no gain


def section(document: PlanDocument) -> Section | None:
    """The changes that the planner tried on the layout, as bars to both sides of nothing."""
    best = document.first
    changes = [] if best is None else [row for row in best.read.parts("what_if") if row.text("change")]
    if not changes:
        return None
    gains = [_gain(row) for row in changes]
    low, high = min(0.0, *gains), max(0.0, *gains)
    scale = (low, (high - low) or 1.0)
    data = {
        "zero": -low / scale[1],
        "groups": [
            _group(title, [row for row in changes if row.text("kind") == kind], scale)
            for kind, title in GROUPS.items()
        ],
    }
    return Section("what-if", "What would change it", "plan_what_if.html", data)


def _group(title: str, rows: Sequence[Reader], scale: tuple[float, float]) -> dict[str, Any]:
    """A title with what helps (and fits) first; what doesn't is folded."""
    helping = [row for row in rows if _gain(row) > LEAST and "does not fit" not in row.text("change")]
    rest = [row for row in rows if row not in helping]
    return {
        "title": title,
        "rows": [_bar(row, scale) for row in helping],
        "folded": [_bar(row, scale) for row in rest],
        "nothing": f"None of the {len(rows)} changes that were tried helps." if rows and not helping else "",
    }


def _bar(row: Reader, scale: tuple[float, float]) -> dict[str, Any]:
    low, width = scale
    value = _gain(row)
    name, _, note = row.text("change").partition(", ")
    return {
        "change": name,
        "note": note,
        "gain": f"{value:+.1f}%".replace("-", "−"),
        "step": short_time(row.number("step_time_s")),
        "start": (min(value, 0.0) - low) / width,
        "width": abs(value) / width,
        "kind": "gain" if value > 0 else "loss",
    }


def _gain(row: Reader) -> float:
    """Percent more tokens per second and device."""
    return row.number("gain_pct") or 0.0
