"""A layout beside the best one: what it costs, part by part of a step, and the memory that it lacks.

best: 1.20 s     tp 8 instead of 4: 8.3% worse (1.30 s against 1.20 s): +0.1 s tensor-parallel exchange
"""

from __future__ import annotations

from typing import Any

from scalewright.plan.predict import Prediction
from scalewright.plan.search.choices import Choice
from scalewright.plan.terms import PART_TERMS
from scalewright.spec.text.words import short_time

FOLLOWS = ("dp", "cp_kind", "stage_layers")  # keys that the others imply, or that tell little
LEAST = 0.1  # of the difference: smaller parts aren't named


def compare(axis: str, one: Choice, best: Choice, headroom: float | None) -> dict[str, Any]:
    """An entry of `why_not`: how a layout differs from the best, in numbers and in one line.

    `headroom`: the plan's; null: a layout must fit up to the p90 of its memory.
    """
    ours, theirs = best.prediction, one.prediction
    layout, mine = one.keys, best.keys
    keys = axis.split(", ") if axis else []
    others = [key for key in layout if axis and key not in (*keys, *FOLLOWS) and layout[key] != mine[key]]
    words = ", ".join(f"{key} {value_words(layout[key])} instead of {value_words(mine[key])}" for key in keys)
    if others:
        words += " (with " + ", ".join(f"{key} {value_words(layout[key])}" for key in others) + ")"
    slower = one.score / best.score - 1
    needs, room = theirs.needs_gib(headroom)
    short = max(0.0, needs - room)
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
        "why": _why(words, ours, theirs, slower, (needs, room)),
    }


def value_words(value: Any) -> str:
    """A value of a layout's key as users read it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)


def _why(words: str, ours: Prediction, theirs: Prediction, slower: float, memory: tuple[float, float]) -> str:
    lead = f"{words}: " if words else ""
    times = f"{short_time(theirs.step_time_s)} against {short_time(ours.step_time_s)}"
    if abs(slower) < 5e-4:
        pace = f"as fast ({times})"
    else:
        pace = f"{100 * abs(slower):.1f}% {'worse' if slower > 0 else 'better'} ({times})"
    parts = differences(ours, theirs)
    needs, room = memory
    if needs > room:
        lead += f"does not fit, as it may need {needs:.1f} GiB of the {room:.1f} there are; it would be "
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
        f"{'+' if found[p] > 0 else '-'}{short_time(abs(found[p]))} {PART_TERMS[p]}" for p in some
    )
