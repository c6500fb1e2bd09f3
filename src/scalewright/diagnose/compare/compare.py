"""An answer of `diagnose` against another one, or against a plan.

OTHER ──► JSON of `diagnose`, `plan` or `predict`, as it is
     └──► anything that `diagnose` reads: traces, a log, a run's folder

A run beside what `plan --json` or `predict --json` said that it would take.

    planned                        measured in a trace        in a log or a run's folder
    compute, recompute, optimizer  compute                    -
    tp, dp, cp, ep, pp exposed     exposed communication      -
    bubble, other                  exposed copies, idle       -
    step time p10 to p90           the median step            the median step

The plan's categories are of its slowest rank, the trace's of its first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.compare import traces
from scalewright.diagnose.compare.noise import by_step, change, losses_apart
from scalewright.spec.errors import UserError

TRACE, LOGS = "trace", ("log", "run")
LARGEST = 64 << 20  # bytes of a file that may be an answer's JSON rather than a trace
GIVE = "give traces, a log or a run's folder, or JSON that `diagnose`, `predict` or `plan` printed"
SAME = {  # of a trace -> of a plan's time_breakdown_s
    "compute": ("compute", "recompute", "optimizer"),
    "exposed_communication": ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"),
    "idle and memcpy": ("pp_bubble", "other"),
}


def read_other(path: Path, read: Callable[[Path], dict[str, object]]) -> Mapping[str, Any]:
    """The other answer or plan; `read` diagnoses a path that isn't one already."""
    if path.is_file() and path.stat().st_size < LARGEST:
        document = _document(path)
        if document is not None and (document.get("kind") in (TRACE, *LOGS) or prediction(document)):
            return document
    return read(path)


def compare(answer: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, object]:
    """The part `against` of an answer; raises UserError for two that have nothing to compare."""
    try:
        result = _compare(answer, other)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise UserError("it isn't an answer that this version wrote", name, GIVE) from None
    if result is None:
        then, here = other.get("kind", "plan"), answer["kind"]
        raise UserError(f"a {here} and a {then} have no step times to compare", name, GIVE)
    return {"other": name, **result}


def slower_than(against: Mapping[str, Any], percent: float) -> bool:
    """Whether a gate of so many percent fails: slower by more, and not within the steps' noise."""
    return bool(against["change_pct"] > percent and against["beyond_noise"] is not False)


def _compare(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, object] | None:
    if (plan := prediction(other)) is not None:
        return beside_plan(answer, plan) if answer["kind"] in (TRACE, *LOGS) else None
    if answer["kind"] == TRACE == other["kind"]:
        return _traces(answer, other)
    if answer["kind"] in (TRACE, *LOGS) and other["kind"] in (TRACE, *LOGS):
        return _steps(answer, other)
    return None


def _traces(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, object]:
    times = traces.times(other), traces.times(answer)
    if not all(times):
        times = [other["window_s"]], [answer["window_s"]]
    changed = change(*times)
    assert changed is not None  # a window is never empty
    return {
        "kind": TRACE,
        "of": "step" if traces.times(answer) and traces.times(other) else "window",
        **changed.dump(),
        "parts": traces.parts(other, answer),
        "idle_causes": traces.causes(other, answer),
        "kinds": traces.kinds(other, answer),
        "kernels": traces.kernels(other, answer),
        "groups": traces.groups(other, answer),
        "notes": traces.differences(other, answer),
    }


def _steps(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, object] | None:
    """Times of steps, whatever they were read from; losses where both have them."""
    changed = change(step_times(other), step_times(answer))
    if changed is None:
        return None
    both = answer["kind"] in LOGS and other["kind"] in LOGS
    losses = losses_apart(by_step(other["log"]["steps"]), by_step(answer["log"]["steps"])) if both else None
    return {"kind": other["kind"], "of": "step", **changed.dump(), "loss": losses, "notes": []}


def _document(path: Path) -> dict[str, object] | None:
    """A file's JSON object; None for anything else."""
    with path.open("rb") as file:
        if file.read(1) != b"{":
            return None
    text = path.read_bytes()
    if b'"traceEvents"' in text:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def prediction(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plan in a JSON document: `predict`'s own, the best of `plan`'s; None where it is neither."""
    best = document.get("best")
    some = best[0] if isinstance(best, list) and best else document
    if not isinstance(some, Mapping) or not isinstance(some.get("time_breakdown_s"), Mapping):
        return None
    return some if isinstance(some.get("step_time_s"), Mapping) else None


def beside_plan(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, object] | None:
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


def _parts(answer: Mapping[str, Any], planned: Mapping[str, float]) -> list[dict[str, object]]:
    measured = {row["part"]: row["now_s"] for row in traces.parts(answer, answer)}
    measured["idle and memcpy"] = measured.pop("idle") + measured.pop("exposed_copy")
    rows = []
    for part, keys in SAME.items():
        then = sum(planned.get(key, 0.0) for key in keys)
        rows.append({"part": part, "before_s": then, "now_s": measured[part], "change_s": measured[part] - then})
    return rows
