"""Beside another run or a plan, and with costs changed: times before and after, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.page import Section
from scalewright.spec.common.formatting import against, short_time

LEAST = 0.005  # of a step: smaller changes aren't listed
KERNELS = 5


def section(answer: Mapping[str, Any]) -> Section | None:
    tables = [*_against(answer.get("against")), *_what_if(answer.get("what_if"))]
    return (
        Section("change", "What changed, what would", "diagnosis_tables.html", {"tables": tables})
        if tables
        else None
    )


def _against(compared: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    if not compared:
        return
    rows = [["a step", compared["now_s"], compared["before_s"]]]
    for key, name in (
        ("parts", "part"),
        ("idle_causes", "idle"),
        ("kinds", "kind"),
        ("kernels", "short_name"),
    ):
        few = compared.get(key, [])[:KERNELS] if key == "kernels" else compared.get(key, [])
        rows += [
            [str(row[name]).replace("_", " ").replace("copy", "memcpy"), row["now_s"], row["before_s"]]
            for row in few
            if abs(row["now_s"] - row["before_s"]) >= LEAST * compared["before_s"]
        ]
    plan = compared["kind"] == "plan"
    band = f"planned {short_time(compared['p10_s'])} to {short_time(compared['p90_s'])}" if plan else ""
    yield {
        "title": f"Against {compared['other']}",
        "note": ". ".join([*([band] if band else []), *compared["notes"]]),
        "heads": ["", "now", "plan" if plan else "before", "change"],
        "rows": [
            [name, short_time(now), short_time(before), against(now, before) if before else ""]
            for name, now, before in rows
        ],
    }


def _what_if(effects: Any) -> Iterator[dict[str, Any]]:
    if effects:
        yield {
            "title": "What if",
            "note": "",
            "heads": ["change", "a step, or the window", "less"],
            "rows": [
                [effect["change"], short_time(effect["step_time_s"] or effect["window_s"]),
                 f"{effect['gain_pct']:.1f}%"]
                for effect in effects
            ],
        }  # fmt: skip
