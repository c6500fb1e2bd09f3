"""A layout compared with the best one: the cost of each part of a step, and the memory that it lacks.

best: 1.20 s     tp 8 instead of 4: 8.3% worse (1.30 s against 1.20 s): +0.1 s tensor-parallel exchange
"""

from __future__ import annotations

from typing import Any

from scalewright.plan.predict import Prediction
from scalewright.plan.search.choices import Choice
from scalewright.spec.common.formatting import short_time
from scalewright.spec.step_parts import PART_TERMS

FOLLOWS = ("dp", "cp_kind", "stage_layers")  # keys that the others imply, or that matter little
MIN_SHARE = 0.1  # of the largest difference: smaller parts aren't listed


def compare(axis: str, choice: Choice, best: Choice, headroom: float | None) -> dict[str, Any]:
    """An entry of `why_not`; `headroom`: the plan's; null: a layout must fit up to the p90 of its memory."""
    prediction, layout, reference = choice.prediction, choice.keys, best.keys
    keys = axis.split(", ") if axis else []
    others = [k for k in layout if axis and k not in (*keys, *FOLLOWS) and layout[k] != reference[k]]
    change = ", ".join(f"{k} {value_words(layout[k])} instead of {value_words(reference[k])}" for k in keys)
    if others:
        change += " (with " + ", ".join(f"{key} {value_words(layout[key])}" for key in others) + ")"
    slower = choice.score / best.score - 1
    needed, usable = prediction.needs_gib(headroom)
    short = max(0.0, needed - usable)
    return {
        "axis": axis,
        "change": change,
        "layout": layout,
        "step_time_s": prediction.step_time_s,
        "slower_pct": 100 * slower,
        "peak_gib": prediction.peak_gib,
        "fits": short == 0.0,
        "lacks_gib": short,
        "costs_s": _costs(best.prediction, prediction),
        "trainable": choice.trainable,
        "untrainable": choice.untrainable,
        "why": _why(change, best.prediction, prediction, slower, (needed, usable)),
    }


def value_words(value: Any) -> str:
    """A value of a layout's key as text for users."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)


def _why(change: str, best: Prediction, other: Prediction, slower: float, memory: tuple[float, float]) -> str:
    lead = f"{change}: " if change else ""
    if memory[0] > memory[1]:
        lead += "does not fit, as it may need {:.1f} GiB of the {:.1f} there are; it would be ".format(*memory)
    pace = "as fast"
    if abs(slower) >= 5e-4:
        pace = f"{100 * abs(slower):.1f}% {'worse' if slower > 0 else 'better'}"
    times = f"{short_time(other.step_time_s)} against {short_time(best.step_time_s)}"
    parts = differences(best, other)
    return f"{lead}{pace} ({times})" + (f": {parts}" if parts else "")


def _costs(best: Prediction, other: Prediction) -> dict[str, float]:
    """Seconds that each part of a step takes beyond the same part of the best."""
    return {part: seconds - best.breakdown[part] for part, seconds in other.breakdown.items()}


def differences(best: Prediction, other: Prediction, most: int = 3) -> str:
    """The parts of a step that differ most, growing ones first: `+1 s computing, -0.3 s pipeline bubble`."""
    costs = _costs(best, other)
    scale = max(map(abs, costs.values()), default=0.0)
    least = MIN_SHARE * scale if scale > 1e-4 * best.step_time_s else float("inf")
    named = sorted((p for p in costs if abs(costs[p]) >= least), key=lambda p: -abs(costs[p]))[:most]
    named.sort(key=lambda p: -costs[p])
    signs = {part: "+" if costs[part] > 0 else "-" for part in named}
    return ", ".join(f"{signs[p]}{short_time(abs(costs[p]))} {PART_TERMS[p]}" for p in named)
