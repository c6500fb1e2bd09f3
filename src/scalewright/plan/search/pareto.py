"""The Pareto front: layouts that no other beats in both time and memory.

memory
  | x                    Recomputation saves memory and costs time: a row that fits without it can have
  |   x    o             variants on the front. They are priced unless a candidate is as fast as the
  |      x     o         row and needs no more memory than the row with everything recomputed.
  +-----------x-- time
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.search.finder import Finder
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Rows


def pareto(finder: Finder, fitting: Priced, most: int = 40) -> Priced:
    """The front among layouts up to `finder.window` slower than the best, fastest first; at most `most`."""
    slowest = fitting.score.min() * finder.window * (1 + 1e-9)
    near = fitting.take(fitting.score <= slowest)
    front = near.take(front_indices(near.score, near.peak))
    plain = near.take(finder.has_plain & (near.rows.recompute == 0) & (near.rows.offload == 0))
    floor = _floor(finder, plain.rows) if len(plain) else np.zeros(0)
    i = np.searchsorted(front.score, plain.score * (1 + 1e-12), side="right") - 1
    leaner = plain.take(floor < np.where(i >= 0, front.peak[np.maximum(i, 0)], np.inf))
    variants = finder.space.spread_recomputes(leaner.rows)
    variants = variants.take(variants.recompute > 0)
    if len(variants):
        priced = finder.pricer.price(variants)
        finder.feasible += int(priced.fits.sum())
        near = Priced.join([near, priced.take(priced.fits & (priced.score <= slowest))])
        front = near.take(front_indices(near.score, near.peak))
    if len(front) > most:
        front = front.take(np.unique(np.linspace(0, len(front) - 1, most).astype(int)))
    return front


def front_indices(score: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Indices of the points on the front, by rising score."""
    order = np.lexsort((peak, score))
    least = np.minimum.accumulate(peak[order])
    better = np.concatenate([[True], peak[order][1:] < least[:-1] * (1 - 1e-6)])
    return np.asarray(order[better])


def _floor(finder: Finder, rows: Rows) -> np.ndarray:
    """Lower bound in bytes on each row's memory with any recomputation."""
    usage = finder.pricer.memory(finder.pricer.leanest(rows))
    return np.asarray(usage.peak - usage.parts["other"])
