"""The pipelined part of a step whose ranks cost differently, in closed form; many pipelines at once.

    step = max over ranks k of   m t_k + idle(mean cost of the ranks beside k)     idle: bubble.py's formulas

The slowest rank works without a pause but for fill and drain, which pass through the others' stages: GPipe
exactly so (Huang et al. 2019 §2.3). 1F1B's rank k waits for F and B of the ranks before it once, and for
those of the ranks after it at the start and again at the end, less its own work meanwhile: p-1-k
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
    `sums`: over all ranks. Equal ranks give m t + `idle_columns`, exactly. The error of unequal ones against
    `simulate` is tested in tests/spec/test_schedule_unequal.py.
    """
    p, v, m = ranks, virtual_stages, micro_batches
    chunks = np.ones_like(p) if find_kind(kind).both_ways else v  # both ways: stage cost = rank cost
    step = np.zeros(np.shape(p))
    places = (np.zeros_like(p), np.minimum(1.0, p - 1), p - 1)
    for place, cost in zip(places, rank_costs, strict=True):
        others = np.maximum(p - 1, 1)
        f, b, w = (
            np.maximum(sum_s - rank_s, 0.0) / others / chunks
            for sum_s, rank_s in (
                (sums.forward, cost.forward), (sums.backward, cost.backward), (sums.weight, cost.weight)
            )
        )  # fmt: skip
        idle = idle_columns(kind, p, v, m, f, b - w, w)
        if kind in ("1f1b", "interleaved"):
            idle = idle - _busy_meanwhile(place, p, m, cost, rank_costs, sums) / chunks
        step = np.maximum(step, m * cost.total + np.maximum(idle, 0.0))
    return step


def _busy_meanwhile(
    place: np.ndarray,
    ranks: np.ndarray,
    micro_batches: np.ndarray,
    cost: RankCost,
    rank_costs: tuple[RankCost, RankCost, RankCost],
    sums: RankCost,
) -> np.ndarray:
    """Seconds that 1F1B's rank at `place` works instead of waiting, while later, faster ranks work.

    A rank with no more micro-batches than ranks after it runs all its forwards first, as GPipe does: 0.
    """
    before = np.where(place > 0, rank_costs[0].total, 0.0)
    after = np.maximum(sums.total - before - cost.total, 0.0)
    later = ranks - 1 - place
    waits = np.maximum(after - later * cost.forward, 0.0) + np.maximum(after - later * cost.backward, 0.0)
    return np.asarray(np.where((later > 0) & (micro_batches > later), after - waits, 0.0))
