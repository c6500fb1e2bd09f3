"""A run beside what `plan --json` or `predict --json` said that it would take.

    planned                        measured in a trace        in a log or a run's folder
    compute, recompute, optimizer  compute                    -
    tp, dp, cp, ep, pp exposed     exposed communication      -
    bubble, other                  exposed copies, idle       -
    step time p10 to p90           the median step            the median step

The plan's categories are of its slowest rank, the trace's of its first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalewright.diagnose.compare import traces

SAME = {  # of a trace -> of a plan's time_breakdown_s
    "compute": ("compute", "recompute", "optimizer"),
    "exposed_communication": ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"),
    "idle and memcpy": ("pp_bubble", "other"),
}


def prediction(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plan in a JSON document: `predict`'s own, the best of `plan`'s; None where it is neither."""
    best = document.get("best")
    some = best[0] if isinstance(best, list) and best else document
    if not isinstance(some, Mapping) or not isinstance(some.get("time_breakdown_s"), Mapping):
        return None
    return some if isinstance(some.get("step_time_s"), Mapping) else None


def beside_plan(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Measured beside planned; None where the answer has no step's time."""
    steps = step_times(answer)
    if not steps:
        return None
    band, measured = plan["step_time_s"], float(np.median(steps))
    rows = []
    if answer["kind"] == "trace":
        rows = _parts(answer, plan["time_breakdown_s"])
    return {
        "kind": "plan",
        "before_s": band["p50"],
        "p10_s": band["p10"],
        "p90_s": band["p90"],
        "now_s": measured,
        "change_pct": 100 * (measured / band["p50"] - 1),
        "beyond_noise": not band["p10"] <= measured <= band["p90"],
        "parts": rows,
        "notes": [],
    }


def step_times(answer: Mapping[str, Any]) -> list[float]:
    """Seconds of each step; of a log without those of its warm-up."""
    if answer["kind"] == "trace":
        return traces.times(answer)
    log = answer["log"]
    times = [step["step_time_s"] for step in log["steps"][log["measured"]["left_out"] :]]
    known = [time for time in times if time is not None]
    whole = log["measured"]["step_time_s"]
    return known or ([whole] if whole is not None else [])


def _parts(answer: Mapping[str, Any], planned: Mapping[str, float]) -> list[dict[str, Any]]:
    measured = {row["part"]: row["now_s"] for row in traces.parts(answer, answer)}
    measured["idle and memcpy"] = measured.pop("idle") + measured.pop("exposed_copy")
    rows = []
    for part, keys in SAME.items():
        then = sum(planned.get(key, 0.0) for key in keys)
        rows.append(
            {"part": part, "before_s": then, "now_s": measured[part], "change_s": measured[part] - then}
        )
    return rows
