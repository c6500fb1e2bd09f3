"""The near losers of each axis: the best layout with another value of it, and a faster one that doesn't fit.

best:  tp 4  pp 4  zero 1  ...
       tp 8 or 2, any other axes       the fastest of them that fits
       pp, cp, ep, zero, micro-batch, recompute, schedule, ...   likewise
       only one axis changed           where that is faster, and doesn't fit
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows, Space

CORE_AXES = ("tp", "sp", "pp", "cp", "cp_kind", "ep", "etp", "micro_batch")
AXES = (*CORE_AXES, "schedule", "virtual_stages", "zero_stage", "dp_replicate", "recompute", "offload")
SEARCHED_AXES = ("tp", "pp", "cp", "ep", "micro_batch")  # searched again if no candidate has another value


def columns(space: Space, rows: Rows) -> dict[str, np.ndarray]:
    """The value of every axis in every row, as numbers."""
    values = {axis: space.core[axis][rows.core] for axis in CORE_AXES}
    values |= {axis: space.pipe[axis][rows.pipe] for axis in ("schedule", "virtual_stages")}
    values |= {axis: space.shard[axis][rows.shard] for axis in ("zero_stage", "dp_replicate")}
    return values | {"recompute": rows.recompute, "offload": rows.offload}


def near_losers(finder: Finder, candidates: Priced, best: Priced) -> tuple[list[str], Priced]:
    """At most two rows of each axis beside the first of `best`, fastest first, and the axes in which each differs."""
    space, rows = finder.space, candidates.rows
    reference = {axis: values[0] for axis, values in columns(space, best.rows).items()}
    differs = {axis: values != reference[axis] for axis, values in columns(space, rows).items()}
    for axis in ("zero_stage", "dp_replicate"):  # over one rank nothing is sharded
        differs[axis] &= space.core["dp"][rows.core] * space.core["cp"][rows.core] > 1
    changes = np.sum([differs[axis] for axis in AXES], axis=0)
    alone = (changes == 1) | ((changes == 2) & differs["schedule"] & differs["virtual_stages"])
    too_large = candidates.over > 0  # for the device: rows that only exceed the host's memory are left out
    faster = alone & too_large & (candidates.score < best.score[0])
    losers: dict[tuple[int, ...], tuple[Priced, list[str]]] = {}  # by row: several axes may share one
    for axis in AXES:
        fitting = _fastest(candidates, differs[axis] & candidates.fits)
        if fitting is None and axis in SEARCHED_AXES:
            fitting = _search_other(finder, axis, int(reference[axis]))
        for row in (fitting, _fastest(candidates, differs[axis] & faster)):
            if row is not None:
                key = tuple(int(getattr(row.rows, part.name)[0]) for part in fields(Rows))
                losers.setdefault(key, (row, []))[1].append(axis)
    ranked = sorted(losers.values(), key=lambda loser: float(loser[0].score[0]))
    return [", ".join(axes) for _, axes in ranked], Priced.join([row for row, _ in ranked])


def _fastest(priced: Priced, mask: np.ndarray) -> Priced | None:
    index = np.flatnonzero(mask)
    return priced.take(index[[priced.score[index].argmin()]]) if len(index) else None


def _search_other(finder: Finder, axis: str, value: int) -> Priced | None:
    """The best layout with another value of an axis of the core, from a search of only those cores."""
    search = Finder(finder.pricer, top=1, window=1.0)
    search.run(only=np.flatnonzero(finder.space.core[axis] != value))
    candidates = Priced.join(search.candidates)
    return _fastest(candidates, candidates.fits)
