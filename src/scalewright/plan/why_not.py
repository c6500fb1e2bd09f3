"""Why not this layout? What it costs beside the best, what memory it lacks, or which rule forbids it.

slower          the parts of a step that grow, and those that shrink
does not fit    the GiB that it lacks; the smallest change that makes it fit, and what that costs
not legal       the rule; the best layout without the key that breaks it, and what that costs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalewright.plan.explain import smallest_fix
from scalewright.plan.fixed import read_fixed
from scalewright.plan.predict import Prediction
from scalewright.spec.errors import UserError
from scalewright.spec.words import short_time

if TYPE_CHECKING:
    from scalewright.plan.choices import Choice, Plan

PART_WORDS = {
    "compute": "computing",
    "recompute": "recomputing",
    "tp_exposed": "tensor-parallel exchange",
    "dp_exposed": "gradients and parameters",
    "cp_exposed": "context-parallel exchange",
    "ep_exposed": "dispatch to experts",
    "pp_bubble": "pipeline bubble",
    "pp_exposed": "pipeline messages",
    "optimizer": "optimizer and offload",
    "other": "host and stragglers",
}
FOLLOWS = ("dp", "cp_kind", "stage_layers")  # keys that the others imply, or that tell little
LEAST = 0.1  # of the difference: smaller parts aren't named


def compare(axis: str, one: Choice, best: Choice, usable_gib: float) -> dict[str, Any]:
    """An entry of `why_not`: how a layout differs from the best, in numbers and in one line."""
    ours, theirs = best.prediction, one.prediction
    layout, mine = one.keys, best.keys
    keys = axis.split(", ") if axis else []
    others = [key for key in layout if axis and key not in (*keys, *FOLLOWS) and layout[key] != mine[key]]
    words = ", ".join(f"{key} {_value(layout[key])} instead of {_value(mine[key])}" for key in keys)
    if others:
        words += " (with " + ", ".join(f"{key} {_value(layout[key])}" for key in others) + ")"
    slower = one.score / best.score - 1
    short = max(0.0, theirs.peak_gib - usable_gib)
    costs = {part: theirs.breakdown[part] - ours.breakdown[part] for part in theirs.breakdown}
    return {
        "axis": axis,
        "change": words,
        "layout": layout,
        "step_time_s": theirs.step_time_s,
        "slower_pct": 100 * slower,
        "peak_gib": theirs.peak_gib,
        "fits": short == 0.0,
        "lacks_gib": short,
        "costs_s": costs,
        "trainable": one.trainable,
        "untrainable": one.untrainable,
        "why": _why(words, ours, theirs, slower, short, usable_gib),
    }


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)


def _why(
    words: str, ours: Prediction, theirs: Prediction, slower: float, short: float, usable_gib: float
) -> str:
    lead = f"{words}: " if words else ""
    times = f"{short_time(theirs.step_time_s)} against {short_time(ours.step_time_s)}"
    if abs(slower) < 5e-4:
        pace = f"as fast ({times})"
    else:
        pace = f"{100 * abs(slower):.1f}% {'worse' if slower > 0 else 'better'} ({times})"
    parts = differences(ours, theirs)
    if short > 0:
        return f"{lead}lacks {short:.1f} GiB of {usable_gib:.1f}; it would be {pace}" + (
            f": {parts}" if parts else ""
        )
    return f"{lead}{pace}" + (f": {parts}" if parts else "")


def differences(ours: Prediction, theirs: Prediction, most: int = 3) -> str:
    """The parts of a step that differ most, growing ones first: `+1 s computing, -0.3 s pipeline bubble`."""
    found = {part: theirs.breakdown[part] - ours.breakdown[part] for part in theirs.breakdown}
    scale = max((abs(value) for value in found.values()), default=0.0)
    least = LEAST * scale if scale > 1e-4 * ours.step_time_s else float("inf")
    large = (part for part in found if abs(found[part]) >= least)
    some = sorted(large, key=lambda part: -abs(found[part]))[:most]
    some.sort(key=lambda part: -found[part])
    return ", ".join(
        f"{'+' if found[p] > 0 else '-'}{short_time(abs(found[p]))} {PART_WORDS.get(p, p)}" for p in some
    )


# -- one asked-for layout -----------------------------------------------------------------------------


def why_not(plan: Plan, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Why a plan didn't choose the layouts with these keys: the best of them beside the plan's best.

    {asked, verdict, why, ...}: verdict is "best", "slower", "does not fit" or "not legal"; the keys of
    `compare` where there is a layout to compare. Raises UserError for an unknown key.
    """
    asked = {key: value for key, value in layout.items() if value is not None}
    try:
        read_fixed(asked, plan.template)
        found = plan.again(fixed=asked, headroom=UNLIMITED, top=1).best[0]
    except UserError as error:
        if error.where == "fixed" and error.what.startswith("unknown"):
            raise
        return {"asked": asked, "verdict": "not legal", **_forbidden(plan, asked, error)}
    best = plan.best[0]
    fitting = _fitting(plan, asked)
    if fitting is not None:
        entry = compare("", fitting, best, plan.usable_gib)
        verdict = "best" if fitting.score <= best.score * (1 + 1e-9) else "slower"
        why = f"{_asked(asked)}: " + ("this is the best" if verdict == "best" else entry["why"])
        if not fitting.trainable:
            why += f"; {fitting.untrainable}"
        return {"asked": asked, "verdict": verdict, **entry, "why": why}
    entry = compare("", found, best, plan.usable_gib)
    mend = smallest_fix(found.prediction, plan.constants)
    why = f"{_asked(asked)}: {entry['why']}"
    if mend is not None and mend["fits"]:
        more = 100 * (mend["step_time_s"] / best.prediction.step_time_s - 1)
        why += f"; with {mend['change']} it fits, at {short_time(mend['step_time_s'])} ({more:+.1f}%)"
    return {"asked": asked, "verdict": "does not fit", **entry, "why": why, "smallest_fix": mend}


UNLIMITED = -1e6  # headroom of a search that memory doesn't bind: every layout fits


def _asked(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_value(value)}" for key, value in asked.items()) or "any layout"


def _fitting(plan: Plan, asked: Mapping[str, Any]) -> Choice | None:
    """The best layout with these keys that fits."""
    try:
        return plan.again(fixed=asked, top=1).best[0]
    except UserError:
        return None


def _forbidden(plan: Plan, asked: Mapping[str, Any], error: UserError) -> dict[str, Any]:
    """The rule that forbids the keys, and what the best layout costs without the key that is in the way."""
    why = f"{_asked(asked)} is not legal: {error.what}"
    options = []
    for key in asked:
        rest = {name: value for name, value in asked.items() if name != key}
        found = _fitting(plan, rest) if rest else plan.best[0]
        if found is not None:
            options.append((found.score, key, found))
    if not options:
        return {"why": f"{why}; {error.how}" if error.how else why, "rule": error.what, "mend": error.how}
    _, key, found = min(options, key=lambda option: option[0])
    entry = compare("", found, plan.best[0], plan.usable_gib)
    value = _value(entry["layout"].get(key))
    cost = f"{entry['slower_pct']:+.1f}%" if abs(entry["slower_pct"]) >= 0.05 else "nothing"
    why += f"; with {key} {value} it is, and costs {cost} beside the best"
    return {**entry, "why": why, "rule": error.what, "mend": f"{key} {value}"}
