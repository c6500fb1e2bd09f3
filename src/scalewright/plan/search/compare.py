"""A layout compared with the best one: the cost of each part of a step, and the memory that it lacks; the near losers.

best: 1.20 s     tp 8 instead of 4: 8.3% worse (1.30 s against 1.20 s): +0.1 s tensor-parallel exchange

best:  tp 4  pp 4  zero 1  ...
       tp 8 or 2, any other axes       the fastest of them that fits
       pp, cp, ep, zero, micro-batch, recompute, schedule, ...   likewise
       only one axis changed           where that is faster, and doesn't fit
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from scalewright.plan.predict import Prediction
from scalewright.plan.search.branch_and_bound import Finder
from scalewright.plan.search.choices import Choice
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import AXES, CORE_AXES, Rows, Space
from scalewright.spec.common.formatting import short_time
from scalewright.spec.step_parts import PART_TERMS

FOLLOWS = ("dp", "cp_kind", "stage_layers")  # keys that the others imply, or that matter little
MIN_SHARE = 0.1  # of the largest difference: smaller parts aren't listed
SEARCHED_AXES = ("tp", "pp", "cp", "ep", "micro_batch")  # searched again if no candidate has another value


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
        lead += "may" if other.fits else "does"
        lead += " not fit, as it may need {:.1f} GiB of the {:.1f} there are; it would be ".format(*memory)
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


def columns(space: Space, rows: Rows) -> dict[str, np.ndarray]:
    """The value of every axis in every row, as numbers."""
    return vars(space.table(rows)) | {"recompute": rows.recompute}


def near_losers(finder: Finder, candidates: Priced, best: Priced) -> tuple[list[str], Priced]:
    """At most two rows of each axis beside the first of `best`, fastest first, and the axes in which each differs."""
    reference = {axis: columns(finder.space, best.rows)[axis][0] for axis in AXES}
    differs = _differences(finder.space, candidates.rows, reference)
    near = finder.pricer.price(_one_change(finder.space, best.rows.take(slice(0, 1)), reference))
    # rows that only exceed the host's memory are left out
    near = near.take((near.over > 0) & (near.score < best.score[0]))
    too_large = _differences(finder.space, near.rows, reference)
    losers: dict[tuple[int, ...], tuple[Priced, list[str]]] = {}  # by row: several axes may share one
    for axis in AXES:
        fitting = _fastest(candidates, differs[axis])
        if fitting is None and axis in SEARCHED_AXES:
            fitting = _search_other(finder, axis, int(reference[axis]))
        for row in (fitting, _fastest(near, too_large[axis])):
            if row is not None:
                key = tuple(int(getattr(row.rows, part.name)[0]) for part in fields(Rows))
                losers.setdefault(key, (row, []))[1].append(axis)
    ranked = sorted(losers.values(), key=lambda loser: float(loser[0].score[0]))
    return [", ".join(axes) for _, axes in ranked], Priced.join([best.take(slice(0, 0)), *(row for row, _ in ranked)])


def _differences(space: Space, rows: Rows, reference: dict[str, Any]) -> dict[str, np.ndarray]:
    """Whether each row has another value of each axis; over one rank nothing is sharded."""
    values = columns(space, rows)
    differs = {axis: values[axis] != reference[axis] for axis in AXES}
    for axis in ("zero_stage", "dp_replicate"):
        differs[axis] &= values["dp"] * values["cp"] > 1
    return differs


def _one_change(space: Space, row: Rows, reference: dict[str, Any]) -> Rows:
    """The legal rows that differ from one in a single axis, or in its schedule and virtual stages."""
    changed = sum((space.core[axis] != reference[axis]).astype(int) for axis in CORE_AXES)
    cores = np.flatnonzero(changed <= 1)
    rows = space.spread_shards(space.spread_pipes(space.bare(cores)))
    rows.recompute[:], rows.offload[:] = row.recompute[0], row.offload[0]
    rows = Rows.join([rows.take(space.allows(rows)), space.spread_recomputes(row), space.spread_offloads(row)])
    rows = space.legal_offloads(rows)
    differs = _differences(space, rows, reference)
    changes = np.sum([differs[axis] for axis in AXES], axis=0)
    return rows.take((changes == 1) | ((changes == 2) & differs["schedule"] & differs["virtual_stages"]))


def _fastest(priced: Priced, mask: np.ndarray) -> Priced | None:
    index = np.flatnonzero(mask)
    return priced.take(index[[priced.score[index].argmin()]]) if len(index) else None


def _search_other(finder: Finder, axis: str, value: int) -> Priced | None:
    """The best layout with another value of an axis of the core, from a search of only those cores."""
    search = Finder(finder.pricer, top=1, window=1.0)
    search.run(only=np.flatnonzero(finder.space.core[axis] != value))
    return _fastest(search.fitting, search.fitting.fits)
