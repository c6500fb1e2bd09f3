"""The layouts that nearly won, an axis at a time: the best with another value of it, and what memory forbids.

best:  tp 4  pp 4  zero 1  ...
       tp 8 or 2 (whatever the rest)   the fastest of them that fits
       pp, cp, ep, zero, micro-batch, recompute, schedule, ...   likewise
       one axis changed alone          where that is faster, and doesn't fit
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows, Space

CORE_AXES = ("tp", "sp", "pp", "cp", "cp_kind", "ep", "etp", "micro_batch")
AXES = (*CORE_AXES, "schedule", "virtual_stages", "zero_stage", "dp_replicate", "recompute", "offload")
ENOUGH = ("tp", "pp", "cp", "ep", "micro_batch")  # looked for anew where no row near the best has another


@dataclass
class Losers:
    """Rows beside the axis (by its public name) in which they differ from the best."""

    axes: list[str]
    rows: Priced


def columns(space: Space, rows: Rows) -> dict[str, np.ndarray]:
    """The value of every axis in every row, as numbers."""
    found = {axis: space.core[axis][rows.core] for axis in CORE_AXES}
    found |= {axis: space.pipe[axis][rows.pipe] for axis in ("schedule", "virtual_stages")}
    found |= {axis: space.shard[axis][rows.shard] for axis in ("zero_stage", "dp_replicate")}
    return found | {"recompute": rows.rerun, "offload": rows.offload}


def near_losers(finder: Finder, found: Priced, best: Priced) -> Losers:
    """The nearest losers of the first row of `best`, at most two an axis."""
    space = finder.space
    mine = {axis: values[0] for axis, values in columns(space, best.rows).items()}
    theirs = columns(space, found.rows)
    unlike = {axis: values != mine[axis] for axis, values in theirs.items()}
    one_rank = space.core["dp"][found.rows.core] * space.core["cp"][found.rows.core] == 1
    for axis in ("zero_stage", "dp_replicate"):  # over one rank nothing is sharded
        unlike[axis] &= ~one_rank
    changes = np.sum([unlike[axis] for axis in AXES], axis=0)
    fastest = float(best.score[0])
    lacking = found.over > 0  # of the device: what is too much for a host is left out
    axes: list[str] = []
    picked: list[Priced] = []
    for axis in AXES:
        slower = _first(found, unlike[axis] & found.fits)
        if slower is None and axis in ENOUGH:
            slower = _elsewhere(finder, axis, int(mine[axis]))
        alone = (changes == 1) | ((changes == 2) & (unlike["schedule"] & unlike["virtual_stages"]))
        faster = _first(found, unlike[axis] & alone & lacking & (found.score < fastest))
        for one in (slower, faster):
            if one is not None:
                axes.append(axis)
                picked.append(one)
    return Losers(*_without_repeats(axes, picked))


def _first(found: Priced, at: np.ndarray) -> Priced | None:
    """The best of some rows."""
    index = np.flatnonzero(at)
    return found.take(index[[found.score[index].argmin()]]) if len(index) else None


def _elsewhere(finder: Finder, axis: str, value: int) -> Priced | None:
    """The best layout with another value of an axis of the core: a search of those alone."""
    other = np.flatnonzero(finder.space.core[axis] != value)
    if not len(other):
        return None
    again = Finder(finder.pricer, top=1, window=1.0)
    again.run(only=other)
    return _first(joined := Priced.join(again.found), joined.fits) if again.found else None


def _without_repeats(axes: list[str], picked: list[Priced]) -> tuple[list[str], Priced]:
    """Rows that several axes name once, under all of them; best first."""
    under: dict[tuple[int, ...], list[str]] = {}
    rows: dict[tuple[int, ...], Priced] = {}
    for axis, one in zip(axes, picked, strict=True):
        r = one.rows
        key = tuple(int(part[0]) for part in (r.core, r.pipe, r.shard, r.rerun, r.offload))
        under.setdefault(key, []).append(axis)
        rows[key] = one
    if not rows:
        return [], Priced(
            Rows(*(np.zeros(0, dtype=np.intp) for _ in range(5))), *(np.zeros(0) for _ in range(5))
        )
    order = sorted(rows, key=lambda key: float(rows[key].score[0]))
    return [", ".join(under[key]) for key in order], Priced.join([rows[key] for key in order])
