"""Which layouts a plan shows: of each kind the simplest that costs no more than the margin above its fastest.

    simpler = fewer axes, then fewer techniques, then faster; and never more of either than the fastest has

    axes        tp, pp, cp, ep, data parallelism, its replicas (HSDP): each that is above 1
    techniques  interleaving 1, a split backward or both directions 2, recomputation 1 (every k-th block 2),
                offload 2, experts cut by tp 1

A step's prediction is some 10% uncertain: two more techniques for 1% need not make it faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.schedules.kinds import KINDS

MARGIN = 0.02
AXES = ("tp", "pp", "cp", "ep", "dp", "dp_replicate")


def complexity(space: Space, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Axes and techniques of every row, as counted above."""
    core = {axis: space.core[axis][rows.core] for axis in ("tp", "pp", "cp", "ep", "dp", "etp")}
    replicate = space.shard["dp_replicate"][rows.shard]
    axes = sum((core[axis] > 1).astype(int) for axis in AXES[:-1]) + (replicate > 1)
    of_schedule = np.array([kind.complexity for kind in KINDS.values()])
    of_rerun = np.array([_of_recompute(value) for _, _, value in space.reruns])
    of_offload = np.array([2 * (OFFLOADS[kind] != "none") for kind in space.offloads])
    techniques = np.where(core["pp"] > 1, of_schedule[space.pipe["schedule"][rows.pipe]], 0)
    techniques = techniques + of_rerun[rows.rerun] + of_offload[rows.offload] + (core["etp"] > 1)
    return np.asarray(axes), np.asarray(techniques)


def _of_recompute(value: Any) -> int:
    return 0 if value == "none" else 2 if isinstance(value, Mapping) else 1


def choose(finder: Finder, fitting: Priced, top: int, margin: float) -> tuple[Priced, Priced]:
    """The layouts to show, and the fastest of all.

    The first is the simplest within the margin of the fastest; then, of every other kind (tp, pp, ep, what
    they shard), the simplest within the margin of that kind's fastest, the fastest of these first.
    """
    fitting = fitting.take(finder.ranked(fitting))
    best = _simplest(finder, fitting, np.arange(len(fitting)), margin)
    kinds = finder.kinds(fitting.rows)
    _, first = np.unique(kinds, return_index=True)
    others = [np.flatnonzero(kinds == kinds[at]) for at in np.sort(first) if kinds[at] != kinds[best]]
    if margin == 0:  # then they are in the order of their fastest already
        others = others[: top - 1]
    rest = [_simplest(finder, fitting, members, margin) for members in others]
    rest.sort(key=lambda at: (fitting.score[at], at))
    return fitting.take(np.array([best, *rest[: top - 1]])), fitting.take(np.array([0]))


def _simplest(finder: Finder, ranked: Priced, members: np.ndarray, margin: float) -> int:
    """The simplest of the rows `members` (in the order of their rank) that are within the margin."""
    near = members[ranked.score[members] <= ranked.score[members[0]] * (1 + margin) * (1 + 1e-9)]
    if margin == 0:
        return int(near[0])
    axes, techniques = complexity(finder.space, ranked.take(near).rows)
    worse = (axes > axes[0]) | (techniques > techniques[0])
    return int(near[np.lexsort((np.arange(len(near)), techniques, axes, worse))[0]])
