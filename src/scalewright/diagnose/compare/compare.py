"""An answer of `diagnose` against another one, or against a plan.

OTHER ──► JSON of `diagnose`, `plan` or `predict`, as it is
     └──► anything that `diagnose` reads: traces, a log, a run's folder
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewright.diagnose.compare import traces
from scalewright.diagnose.compare.losses import by_step, losses_apart
from scalewright.diagnose.compare.planned import beside_plan, prediction, step_times
from scalewright.diagnose.compare.times import change
from scalewright.spec.errors import UserError

TRACE, LOGS = "trace", ("log", "run")
LARGEST = 64 << 20  # bytes of a file that may be an answer's JSON rather than a trace
GIVE = "give traces, a log or a run's folder, or JSON that `diagnose`, `predict` or `plan` printed"


def read_other(path: Path, read: Callable[[Path], dict[str, Any]]) -> Mapping[str, Any]:
    """The other answer or plan; `read` diagnoses a path that isn't one already."""
    if path.is_file() and path.stat().st_size < LARGEST:
        document = _document(path)
        if document is not None and (document.get("kind") in (TRACE, *LOGS) or prediction(document)):
            return document
    return read(path)


def compare(answer: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
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


def _compare(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    if (plan := prediction(other)) is not None:
        return beside_plan(answer, plan) if answer["kind"] in (TRACE, *LOGS) else None
    if answer["kind"] == TRACE == other["kind"]:
        return _traces(answer, other)
    if answer["kind"] in (TRACE, *LOGS) and other["kind"] in (TRACE, *LOGS):
        return _steps(answer, other)
    return None


def _traces(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
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


def _steps(answer: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Times of steps, whatever they were read from; losses where both have them."""
    changed = change(step_times(other), step_times(answer))
    if changed is None:
        return None
    both = answer["kind"] in LOGS and other["kind"] in LOGS
    losses = losses_apart(by_step(other["log"]["steps"]), by_step(answer["log"]["steps"])) if both else None
    return {"kind": other["kind"], "of": "step", **changed.dump(), "loss": losses, "notes": []}


def _document(path: Path) -> dict[str, Any] | None:
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
