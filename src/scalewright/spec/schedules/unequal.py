"""The pipelined part of a step whose ranks cost differently, in closed form; many pipelines at once.

    step = max over ranks k of   m t_k + idle(mean cost of the ranks beside k)     idle: bubble.py's formulas

The slowest rank works without a pause but for fill and drain, which pass through the others' stages: GPipe
exactly so (Huang et al. 2019 §2.3). 1F1B's rank k waits for F and B of the ranks before it once, and for
those of the ranks after it at the start and again at the end, less what it has to do meanwhile: p-1-k
forwards, and as many backwards (ours, found by the clock).

    S = F + B of the n = p-1-k ranks after k:   waits max(S - n F_k, 0) + max(S - n B_k, 0)

which is S where all are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.spec.schedules.bubble import idle_columns
from scalewright.spec.schedules.kinds import find_kind


@dataclass(frozen=True)
class RankCost:
    """Seconds of one micro-batch on one rank, all of its stages together; columns."""

    forward: np.ndarray
    backward: np.ndarray
    weight: np.ndarray  # of the backward, its weight part

    @property
    def total(self) -> np.ndarray:
        """Forward and backward."""
        return np.asarray(self.forward + self.backward)


def step_columns(
    kind: str,
    ranks: np.ndarray,
    virtual_stages: np.ndarray,
    micro_batches: np.ndarray,
    rank_costs: tuple[RankCost, RankCost, RankCost],
    sums: RankCost,
) -> np.ndarray:
    """Seconds of the pipelined part of a step whose ranks cost differently, many pipelines of one kind.

    `rank_costs`: of the first rank, of the fullest between (as if it were the second), of the last.
    `sums`: over all ranks. Equal ranks give m t + `idle_columns`, exactly. How near unequal ones come to
    `simulate` is tested: tests/spec/test_schedule_unequal.py.
    """
    p, v, m = ranks, virtual_stages, micro_batches
    chunks = (
        np.ones_like(p) if find_kind(kind).both_ways else v
    )  # whose two stages are as long as a rank's work
    found = np.zeros(np.shape(p))
    places = (np.zeros_like(p), np.minimum(1.0, p - 1), p - 1)
    for place, mine in zip(places, rank_costs, strict=True):
        others = np.maximum(p - 1, 1)
        f, b, w = (
            np.maximum(whole - own, 0.0) / others / chunks
            for whole, own in (
                (sums.forward, mine.forward), (sums.backward, mine.backward), (sums.weight, mine.weight)
            )
        )  # fmt: skip
        idle = idle_columns(kind, p, v, m, f, b - w, w)
        if kind in ("1f1b", "interleaved"):
            idle = idle - _busy_meanwhile(place, p, m, mine, rank_costs, sums) / chunks
        found = np.maximum(found, m * mine.total + np.maximum(idle, 0.0))
    return found


def _busy_meanwhile(
    place: np.ndarray,
    ranks: np.ndarray,
    micro_batches: np.ndarray,
    mine: RankCost,
    rank_costs: tuple[RankCost, RankCost, RankCost],
    sums: RankCost,
) -> np.ndarray:
    """What 1F1B's rank at `place` needn't wait for: its own work, while later, faster ranks do theirs.

    A rank with no more micro-batches than ranks after it runs all its forwards first, as GPipe does: nothing.
    """
    before = np.where(place > 0, rank_costs[0].total, 0.0)
    after = np.maximum(sums.total - before - mine.total, 0.0)
    later = ranks - 1 - place
    waits = np.maximum(after - later * mine.forward, 0.0) + np.maximum(after - later * mine.backward, 0.0)
    return np.asarray(np.where((later > 0) & (micro_batches > later), after - waits, 0.0))
