"""Faults on a time axis: a lane for each run, a bar from each fault until the run trained again.

run 1   ────✕▒▒▒▒────────✕▒▒▒▒▒▒▒──────          colours by what happened then: it ended, it went on, it didn't
run 2                                  ──✕▒───   come back
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.report.page import Section
from scalewright.spec.common.formatting import counted, duration, short_time

ENDED, WENT_ON, LOST = 5, 2, 7  # colours of report.css
LEAST = 0.003  # of the axis: so wide is the shortest bar


def in_time(answer: Mapping[str, Any]) -> Section | None:
    """The section; None without faults."""
    if not answer["faults"]:
        return None
    whole = max([answer["seconds"], *(fault["at"] + fault["seconds"] for fault in answer["faults"])])
    lanes = []
    for run in answer["runs"]:
        faults = [fault for fault in answer["faults"] if fault["run"] == run["number"]]
        words = f"run {run['number']}: {counted(len(faults), 'faults')}"
        lanes.append({"name": f"run {run['number']}", "words": words, "pieces": [_piece(f, whole) for f in faults]})
    facts = ["from each fault until the run trained again: it had ended (vermilion), it went on (orange)"]
    return Section(
        "in-time", "Faults in time", "chaos.html", {"lanes": lanes, "length": duration(whole), "facts": facts}
    )


def _piece(fault: Mapping[str, Any], whole: float) -> dict[str, Any]:
    colour = LOST if not fault["recovered"] else ENDED if fault["ended"] else WENT_ON
    after = f"trained again after {short_time(fault['seconds'])}" if fault["recovered"] else "did not come back"
    return {
        "colour": colour, "left": fault["at"] / whole, "width": max(fault["seconds"] / whole, LEAST),
        "words": f"{fault['kind']} at step {fault['step']}, {after}",
    }  # fmt: skip
