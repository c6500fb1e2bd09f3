"""An answer of `diagnose` against another one, or against a plan.

    OTHER ──► JSON of `diagnose`, `plan` or `predict`, as it is
         └──► anything that `diagnose` reads: traces, a log, a run's folder

Of two traces the parts of a step, the kinds of kernels, single kernels and groups, in seconds of a step:

    step time now - then = sum over compute, exposed communication, exposed copies, idle of (now - then)

The parts are those of the first rank's steps; where either trace has none, of whole windows, as means of the ranks.
Kernels are the first rank's, over its whole trace by the number of steps. Of a run beside its plan:

    planned                        measured in a trace        in a log or a run's folder
    compute, recompute, optimizer  compute                    -
    tp, dp, cp, ep, pp exposed     exposed communication      -
    bubble, other                  exposed copies, idle       -
    step time p10 to p90           the median step            the median step

The plan's categories are of its slowest rank, the trace's of its first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.breakdown import PARTS
from scalewright.diagnose.compare.noise import by_step, change, losses_apart
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError

Answer = Mapping[str, Any]
TRACE, LOGS = "trace", ("log", "run")
LARGEST = 64 << 20  # bytes of a file that may be an answer's JSON rather than a trace
LIKE = 0.01  # of kernels a step: beyond, the two don't run the same
GIVE = "give traces, a log or a run's folder, or JSON that `diagnose`, `predict` or `plan` printed"
SAME = {  # of a trace -> of a plan's time_breakdown_s
    "compute": ("compute", "recompute", "optimizer"),
    "exposed_communication": ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"),
    "idle and memcpy": ("pp_bubble", "other"),
}


def read_other(path: Path, read: Callable[[Path], dict[str, object]]) -> Answer:
    """The other answer or plan; `read` diagnoses a path that isn't one already."""
    if path.is_file() and path.stat().st_size < LARGEST:
        document = _document(path)
        if document is not None and (document.get("kind") in (TRACE, *LOGS) or prediction(document)):
            return document
    return read(path)


def compare(answer: Answer, other: Answer, name: str) -> dict[str, object]:
    """The part `against` of an answer; raises UserError for two that have nothing to compare."""
    try:
        result = _compare(answer, other)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise UserError("it isn't an answer that this version wrote", name, GIVE) from None
    if result is None:
        then, here = other.get("kind", "plan"), answer["kind"]
        raise UserError(f"a {here} and a {then} have no step times to compare", name, GIVE)
    return {"other": name, **result}


def slower_than(against: Answer, percent: float) -> bool:
    """Whether a gate of so many percent fails: slower by more, and not within the steps' noise."""
    return bool(against["change_pct"] > percent and against["beyond_noise"] is not False)


def _compare(answer: Answer, other: Answer) -> dict[str, object] | None:
    if answer["kind"] not in (TRACE, *LOGS):
        return None
    if (plan := prediction(other)) is not None:
        return _beside_plan(answer, plan)
    if answer["kind"] == TRACE == other["kind"]:
        return _traces(other, answer)
    return _steps(other, answer) if other["kind"] in (TRACE, *LOGS) else None


def _steps(before: Answer, now: Answer) -> dict[str, object] | None:
    """Times of steps, whatever they were read from; losses where both have them."""
    changed = change(step_times(before), step_times(now))
    if changed is None:
        return None
    both = before["kind"] in LOGS and now["kind"] in LOGS
    losses = losses_apart(by_step(before["log"]["steps"]), by_step(now["log"]["steps"])) if both else None
    return {"kind": before["kind"], "of": "step", **changed.dump(), "loss": losses, "notes": []}


def step_times(answer: Answer) -> list[float]:
    """Seconds of each step; of a log without those of its warm-up."""
    if answer["kind"] == TRACE:
        return [step["step_time_s"] for step in answer["steps"]]
    log = answer["log"]
    times = [step["step_time_s"] for step in log["steps"][log["measured"]["left_out"] :]]
    whole = log["measured"]["step_time_s"]
    return [time for time in times if time is not None] or ([whole] if whole is not None else [])


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


def prediction(document: Answer) -> Answer | None:
    """The plan in a JSON document: `predict`'s own, the best of `plan`'s; None where it is neither."""
    best = document.get("best")
    some = best[0] if isinstance(best, list) and best else document
    if not isinstance(some, Mapping) or not isinstance(some.get("time_breakdown_s"), Mapping):
        return None
    return some if isinstance(some.get("step_time_s"), Mapping) else None


def _beside_plan(answer: Answer, plan: Answer) -> dict[str, object] | None:
    """Measured beside planned; None where the answer has no step's time."""
    steps = step_times(answer)
    if not steps:
        return None
    band, measured = plan["step_time_s"], float(np.median(steps))
    parts = []
    if answer["kind"] == TRACE:
        seconds = _seconds(answer, bool(answer["steps"]))
        now = {**seconds, "idle and memcpy": seconds["idle"] + seconds["exposed_copy"]}
        planned = plan["time_breakdown_s"]
        then = {part: sum(planned.get(key, 0.0) for key in keys) for part, keys in SAME.items()}
        parts = _rows("part", [then, now], SAME)
    return {
        "kind": "plan",
        "before_s": band["p50"],
        "p10_s": band["p10"],
        "p90_s": band["p90"],
        "now_s": measured,
        "change_pct": 100 * (measured / band["p50"] - 1),
        "beyond_noise": not band["p10"] <= measured <= band["p90"],
        "parts": parts,
        "notes": [],
    }


def _traces(before: Answer, now: Answer) -> dict[str, object]:
    both, stepped = (before, now), bool(before["steps"] and now["steps"])
    changed = change(*(step_times(answer) if stepped else [answer["window_s"]] for answer in both))
    assert changed is not None  # a window is never empty
    counts = [len(answer["steps"]) if stepped else 1 for answer in both]
    parts = [_seconds(answer, stepped) for answer in both]
    idle = [_idle(answer, seconds["idle"]) for answer, seconds in zip(both, parts, strict=True)]
    kinds = [_kinds(answer, count) for answer, count in zip(both, counts, strict=True)]
    return {
        "kind": TRACE,
        "of": "step" if stepped else "window",
        **changed.dump(),
        "parts": _rows("part", parts, PARTS),
        "idle_causes": _rows("idle", idle, [cause for cause in idle[1] if idle[0].get(cause) or idle[1][cause]]),
        "kinds": _rows("kind", kinds, _by_change(kinds)),
        "kernels": _kernels(before, now, counts),
        "groups": _groups(before, now, counts),
        "notes": _differences(before, now),
    }


def _rows(key: str, both: Sequence[Mapping[str, float]], names: Iterable[str]) -> list[dict[str, object]]:
    rows = ((name, [seconds.get(name, 0.0) for seconds in both]) for name in names)
    return [{key: name, "before_s": then, "now_s": here, "change_s": here - then} for name, (then, here) in rows]


def _by_change(both: Sequence[Mapping[str, float]]) -> list[str]:
    """The names of both, the largest change first."""
    then, here = both
    return sorted(sorted({*then, *here}), key=lambda name: -abs(here.get(name, 0.0) - then.get(name, 0.0)))


def _seconds(answer: Answer, stepped: bool) -> dict[str, float]:
    """Seconds of each part of a mean step, or of the window."""
    windows = [(step["breakdown_pct"], step["step_time_s"]) for step in answer["steps"]]
    windows = windows if stepped else [(answer["breakdown_pct"], answer["window_s"])]
    return {part: float(np.mean([shares[part] / 100 * seconds for shares, seconds in windows])) for part in PARTS}


def _idle(answer: Answer, seconds: float) -> dict[str, float]:
    """Why the device was idle: each cause's share of the idle part."""
    whole = sum(answer["idle_causes_pct"].values())
    return {cause: seconds * share / whole if whole else 0.0 for cause, share in answer["idle_causes_pct"].items()}


def _kinds(answer: Answer, steps: int) -> dict[str, float]:
    first = answer["top_kernels"][:1]
    if not first or not first[0]["share_pct"]:
        return {}
    whole = first[0]["total_s"] / (first[0]["share_pct"] / 100) / steps
    return {kind: share / 100 * whole for kind, share in answer["kernel_kinds_pct"].items()}


def _kernels(before: Answer, now: Answer, steps: list[int]) -> list[dict[str, object]]:
    """Kernels by name among those that took the most; one that only one of them lists has None beside it."""
    then, here = ({kernel["name"]: kernel for kernel in answer["top_kernels"]} for answer in (before, now))
    kernels, lists = then | here, list(zip((then, here), steps, strict=True))
    seconds = [{name: kernel["total_s"] / count for name, kernel in listed.items()} for listed, count in lists]
    counts = [{name: kernel["count"] / count for name, kernel in listed.items()} for listed, count in lists]
    return [
        {"name": name, "short_name": kernels[name]["short_name"], "kind": kernels[name]["kind"],
         "before_s": seconds[0].get(name), "now_s": seconds[1].get(name),
         "change_s": seconds[1].get(name, 0.0) - seconds[0].get(name, 0.0),
         "before_count": counts[0].get(name), "now_count": counts[1].get(name)}
        for name in _by_change(seconds)
    ]  # fmt: skip


def _groups(before: Answer, now: Answer, steps: list[int]) -> list[dict[str, object]]:
    """Transfer and the longest waiting in the collectives of groups that both have by name, a step."""
    then = {group["group"]: group for group in before["communication"]["per_group"]}
    return [
        {"group": group["group"],
         "before_transfer_s": old["transfer_s"] / steps[0], "transfer_s": group["transfer_s"] / steps[1],
         "before_wait_s": max(old["wait_s"]) / steps[0], "wait_s": max(group["wait_s"]) / steps[1]}
        for group in now["communication"]["per_group"]
        if (old := then.get(group["group"])) is not None
    ]  # fmt: skip


def _differences(before: Answer, now: Answer) -> list[str]:
    """Why the two may not be alike."""
    notes = []
    if before["device"] != now["device"]:
        notes.append(f"the devices differ: {before['device']} then, {now['device']} now")
    if len(before["ranks"]) != len(now["ranks"]):
        notes.append(f"traces of {counted(len(before['ranks']), 'ranks')} then, of {len(now['ranks'])} now")
    if not (before["steps"] and now["steps"]):
        return [*notes, "one of them has no steps: whole windows are compared"]
    shared = {k["name"] for k in before["top_kernels"]} & {k["name"] for k in now["top_kernels"]}
    then, here = (
        sum(k["count"] for k in answer["top_kernels"] if k["name"] in shared) / len(answer["steps"])
        for answer in (before, now)
    )
    if abs(here - then) > LIKE * max(then, here):
        notes.append(f"the same kernels run {counted(round(then), 'times')} a step then, {here:,.0f} now: other work")
    return notes
