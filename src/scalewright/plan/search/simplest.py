"""The layouts that a plan shows: of each kind the simplest that is at most a margin slower than its fastest.

    simpler = fewer axes, then fewer techniques, then faster; at most as many of either as the fastest

    axes        tp, pp, cp, ep, data parallelism, its replicas (HSDP): each that is above 1
    techniques  interleaving 1, a split backward or both directions 2, recomputation 1 (every k-th block 2),
                offload 2, etp 1

Predictions of a step are uncertain by some 10%: a gain of 1% from two more techniques may not be real.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.schedules.kinds import KINDS

AXES = ("tp", "pp", "cp", "ep", "dp", "dp_replicate")


def complexity(space: Space, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The number of axes and techniques of every row, counted as above."""
    core = {axis: space.core[axis][rows.core] for axis in ("tp", "pp", "cp", "ep", "dp", "etp")}
    replicate = space.shard["dp_replicate"][rows.shard]
    axes = sum((core[axis] > 1).astype(int) for axis in AXES[:-1]) + (replicate > 1)
    schedule = np.array([kind.complexity for kind in KINDS.values()])
    values = [value for _, _, value in space.recomputes]
    recompute = np.array([0 if value == "none" else 2 if isinstance(value, dict) else 1 for value in values])
    offload = np.array([2 * (OFFLOADS[kind] != "none") for kind in space.offloads])
    techniques = np.where(core["pp"] > 1, schedule[space.pipe["schedule"][rows.pipe]], 0)
    techniques = techniques + recompute[rows.recompute] + offload[rows.offload] + (core["etp"] > 1)
    return np.asarray(axes), np.asarray(techniques)


def choose(finder: Finder, fitting: Priced, top: int, margin: float) -> tuple[Priced, Priced]:
    """The layouts to show, and the fastest of all.

    First the simplest within the margin of the fastest; then, for every other kind (tp, pp, ep, sharding),
    the simplest within the margin of that kind's fastest, sorted by score.
    """
    fitting = fitting.take(finder.ranked(fitting))
    best = _simplest(finder, fitting, np.arange(len(fitting)), margin)
    kinds = finder.kinds(fitting.rows)
    _, first = np.unique(kinds, return_index=True)
    others = [np.flatnonzero(kinds == kinds[i]) for i in np.sort(first) if kinds[i] != kinds[best]]
    if margin == 0:  # each kind's simplest is its fastest, and the kinds are sorted by these already
        others = others[: top - 1]
    rest = [_simplest(finder, fitting, members, margin) for members in others]
    rest.sort(key=lambda i: (fitting.score[i], i))
    return fitting.take(np.array([best, *rest[: top - 1]])), fitting.take(np.array([0]))


def _simplest(finder: Finder, ranked: Priced, members: np.ndarray, margin: float) -> int:
    """The simplest of the rows `members` (fastest first) that are within the margin of their first."""
    near = members[ranked.score[members] <= ranked.score[members[0]] * (1 + margin) * (1 + 1e-9)]
    if margin == 0:
        return int(near[0])
    axes, techniques = complexity(finder.space, ranked.take(near).rows)
    worse = (axes > axes[0]) | (techniques > techniques[0])
    return int(near[np.lexsort((np.arange(len(near)), techniques, axes, worse))[0]])
