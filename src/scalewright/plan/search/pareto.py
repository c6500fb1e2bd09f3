"""The layouts that no other beats in both time and memory.

memory
  | x                    recomputing saves memory and costs time: rows that fit as they are can have
  |   x    o             leaner forms on the front. Each is priced unless a layout is known that is as
  |      x     o         fast as the row and as lean as the row can get.
  +-----------x-- time
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows


def pareto(finder: Finder, fitting: Priced, most: int = 40) -> Priced:
    """The front among layouts up to `finder.window` slower than the best, fastest first; at most `most`."""
    near = fitting.take(fitting.score <= fitting.score.min() * finder.window * (1 + 1e-9))
    front = near.take(front_of(near.score, near.peak))
    plain = near.take(finder.has_plain & (near.rows.rerun == 0) & (near.rows.offload == 0))
    floor = _floor(finder, plain.rows) if len(plain) else np.zeros(0)
    at = np.searchsorted(front.score, plain.score * (1 + 1e-12), side="right") - 1
    leaner = plain.take(floor < np.where(at >= 0, front.peak[np.maximum(at, 0)], np.inf))
    if len(leaner):
        again = finder.space.spread_reruns(leaner.rows)
        priced = finder.pricer.price(again.take(again.rerun > 0)) if (again.rerun > 0).any() else None
        if priced is not None:
            ok = priced.fits & (priced.score <= near.score.min() * finder.window * (1 + 1e-9))
            finder.feasible += int(priced.fits.sum())
            near = Priced.join([near, priced.take(ok)])
            front = near.take(front_of(near.score, near.peak))
    if len(front) > most:
        front = front.take(np.unique(np.linspace(0, len(front) - 1, most).astype(int)))
    return front


def front_of(score: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Indices of the points that none is at least as good as in both, by rising score."""
    order = np.lexsort((peak, score))
    least = np.minimum.accumulate(peak[order])
    better = np.concatenate([[True], peak[order][1:] < least[:-1] * (1 - 1e-6)])
    return np.asarray(order[better])


def _floor(finder: Finder, rows: Rows) -> np.ndarray:
    """Bytes that no recomputation takes a row below."""
    lean = finder.pricer.leanest(rows, offload=False)
    held = finder.pricer.memories(lean)
    return np.asarray(held.peak - held.parts["other"])
