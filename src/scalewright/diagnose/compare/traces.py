"""Two traces: the parts of a step, the kinds of kernels, single kernels and groups, in seconds of a step.

    step time now - then = sum over compute, exposed communication, exposed copies, idle of (now - then)

The parts are those of the first rank's steps; where either trace has none, of whole windows, as means of the
ranks. Kernels are the first rank's, over its whole trace by the number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")
Answer = Mapping[str, Any]
LIKE = 0.01  # of kernels a step: beyond, the two don't run the same


def times(answer: Answer) -> list[float]:
    """Seconds of each step."""
    return [step["step_time_s"] for step in answer["steps"]]


def parts(before: Answer, now: Answer) -> list[dict[str, Any]]:
    """The four parts, which add up to the step's or the window's change."""
    stepped = bool(before["steps"]) and bool(now["steps"])
    then, here = _seconds(before, stepped), _seconds(now, stepped)
    return [_row("part", part, then[part], here[part]) for part in PARTS]


def causes(before: Answer, now: Answer) -> list[dict[str, Any]]:
    """Why the device was idle: each cause's share of the idle part."""
    stepped = bool(before["steps"]) and bool(now["steps"])
    then, here = (_idle(answer, _seconds(answer, stepped)["idle"]) for answer in (before, now))
    rows = [_row("idle", cause, then.get(cause, 0.0), here[cause]) for cause in here]
    return [row for row in rows if row["before_s"] or row["now_s"]]


def kinds(before: Answer, now: Answer) -> list[dict[str, object]]:
    """Kernels by kind, the largest change first."""
    then, here = _kinds(before, now), _kinds(now, before)
    rows = [_row("kind", kind, then.get(kind, 0.0), here.get(kind, 0.0)) for kind in sorted({*then, *here})]
    return sorted(rows, key=lambda row: -abs(row["change_s"]))


def kernels(before: Answer, now: Answer) -> list[dict[str, object]]:
    """Kernels by name among those that took the most; one that only one of them lists has None beside it."""
    then, here = ({k["name"]: k for k in answer["top_kernels"]} for answer in (before, now))
    scales = _per_step(before, now), _per_step(now, before)
    rows = []
    for name in sorted({*then, *here}):
        some = here.get(name) or then[name]
        first, second = (
            k["total_s"] / scale if (k := list_.get(name)) else None
            for list_, scale in zip((then, here), scales, strict=True)
        )
        counts = [list_[name]["count"] / scale if name in list_ else None
                  for list_, scale in zip((then, here), scales, strict=True)]  # fmt: skip
        rows.append({
            "name": name, "short_name": some["short_name"], "kind": some["kind"],
            "before_s": first, "now_s": second, "change_s": (second or 0.0) - (first or 0.0),
            "before_count": counts[0], "now_count": counts[1],
        })  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row["change_s"]))


def groups(before: Answer, now: Answer) -> list[dict[str, object]]:
    """Transfer and the longest waiting in the collectives of groups that both have by name, a step."""
    then = {group["group"]: group for group in before["communication"]["per_group"]}
    scales = _per_step(before, now), _per_step(now, before)
    return [
        {"group": group["group"],
         "before_transfer_s": old["transfer_s"] / scales[0], "transfer_s": group["transfer_s"] / scales[1],
         "before_wait_s": max(old["wait_s"]) / scales[0], "wait_s": max(group["wait_s"]) / scales[1]}
        for group in now["communication"]["per_group"]
        if (old := then.get(group["group"])) is not None
    ]  # fmt: skip


def differences(before: Answer, now: Answer) -> list[str]:
    """Why the two may not be alike."""
    notes = []
    if before["device"] != now["device"]:
        notes.append(f"the devices differ: {before['device']} then, {now['device']} now")
    if len(before["ranks"]) != len(now["ranks"]):
        notes.append(f"traces of {len(before['ranks'])} ranks then, of {len(now['ranks'])} now")
    if not (before["steps"] and now["steps"]):
        notes.append("one of them has no steps: whole windows are compared")
        return notes
    shared = {k["name"] for k in before["top_kernels"]} & {k["name"] for k in now["top_kernels"]}
    then, here = (
        sum(k["count"] for k in answer["top_kernels"] if k["name"] in shared) / len(answer["steps"])
        for answer in (before, now)
    )
    if abs(here - then) > LIKE * max(then, here):
        notes.append(f"the same kernels run {then:,.0f} times a step then, {here:,.0f} now: other work")
    return notes


def _row(key: str, name: str, before: float, now: float) -> dict[str, Any]:
    return {key: name, "before_s": before, "now_s": now, "change_s": now - before}


def _seconds(answer: Answer, stepped: bool) -> dict[str, float]:
    """Seconds of each part of a mean step, or of the window."""
    if not stepped:
        return {part: answer["breakdown_pct"][part] / 100 * answer["window_s"] for part in PARTS}
    return {
        part: float(np.mean([s["breakdown_pct"][part] / 100 * s["step_time_s"] for s in answer["steps"]]))
        for part in PARTS
    }


def _idle(answer: Answer, seconds: float) -> dict[str, float]:
    whole = sum(answer["idle_causes_pct"].values())
    return {cause: seconds * share / whole if whole else 0.0 for cause, share in answer["idle_causes_pct"].items()}


def _kinds(answer: Answer, other: Answer) -> dict[str, float]:
    first = answer["top_kernels"][:1]
    if not first or not first[0]["share_pct"]:
        return {}
    whole = first[0]["total_s"] / (first[0]["share_pct"] / 100) / _per_step(answer, other)
    return {kind: share / 100 * whole for kind, share in answer["kernel_kinds_pct"].items()}


def _per_step(answer: Answer, other: Answer) -> int:
    """The steps of a trace; 1 where whole windows are compared."""
    return len(answer["steps"]) if answer["steps"] and other["steps"] else 1
