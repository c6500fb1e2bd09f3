"""Pipelines of processes that were timed, by the clock of the schedule: message by message.

    rank 0   F0 > F1 >  .   .  B0 ...      seconds of F, B, W of each rank, and of each border's message,
    rank 1   ===> F0 B0 > ...              inside a machine or between two: spec/schedules/clock.py

A message travels while both ends compute, yet a 1F1B pipeline waits for it: rank k has p - k micro-batches
under way, whose forwards and backwards need 2 (p - 1 - k) messages one after the other, so that every p of
them take at least 2 (p - 1) messages longer. A weight part (zb-h1) fills that wait. No formula here:
schedules are too many, and borders differ. After 4 p micro-batches a pipeline repeats itself every p; the
rest follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalewright.plan.request import SCHEDULES
from scalewright.spec.schedules.action import Action
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.clock import simulate
from scalewright.spec.schedules.kinds import find_kind
from scalewright.spec.schedules.order import Schedule
from scalewright.spec.schedules.unequal import RankCost

FILLED = 4  # micro-batches a rank until the pipeline repeats itself
TIMED = np.array([find_kind(kind).trained and find_kind(kind).flushes for kind in SCHEDULES])
_plan = lru_cache(maxsize=512)(schedule)


@dataclass(frozen=True)
class Border:
    """Seconds of a message [rows] to a neighbour on the same machine, and on another."""

    near: np.ndarray
    far: np.ndarray
    stride: np.ndarray  # processes of a pipeline rank
    node: float  # processes of a machine

    def seconds(self, row: int, rank: int, peer: int) -> float:
        """Of a message between two pipeline ranks."""
        stride = self.stride[row]
        crosses = rank * stride // self.node != peer * stride // self.node
        return float(self.far[row] if crosses else self.near[row])


@dataclass(frozen=True)
class Sizes:
    """Columns of pipelines: schedule (index), ranks, stages of a rank, micro-batches."""

    kind: np.ndarray
    ranks: np.ndarray
    virtual_stages: np.ndarray
    micro_batches: np.ndarray


def makespans(
    rows: np.ndarray, sizes: Sizes, costs: tuple[RankCost, RankCost, RankCost], sums: RankCost, border: Border
) -> np.ndarray:
    """Seconds of these rows' pipelines; `costs`: of the fullest rank between, the first and the last.

    `sums`: over all ranks; those between hold what the ends leave.
    """
    times = []
    for row in rows:
        p, v, m = (int(column[row]) for column in (sizes.ranks, sizes.virtual_stages, sizes.micro_batches))
        kind = SCHEDULES[int(sizes.kind[row])]
        parts = [_rank_parts(row, rank, p, costs, sums, v) for rank in range(p)]

        def time(
            micros: int, kind: str = kind, p: int = p, v: int = v, row: int = row, parts: list[_Parts] = parts
        ) -> float:
            plan = _plan(kind, p, v, micros)
            return simulate(plan, _cost(plan, parts), _send(plan, border, row)).makespan

        if m <= FILLED * p:
            times.append(time(m))
            continue
        filled, before = time(FILLED * p), time((FILLED - 1) * p)
        times.append(filled + (m / p - FILLED) * (filled - before))
    return np.array(times)


_Parts = dict[str, float]  # seconds of one stage's computations, by kind


def _rank_parts(
    row: int, rank: int, ranks: int, costs: tuple[RankCost, RankCost, RankCost], sums: RankCost, stages: int
) -> _Parts:
    """Seconds of a rank's stages; the second rank is the fullest between, the others share what is left."""
    between, first, last = costs

    def of(name: str) -> float:
        column = {0: first, ranks - 1: last}.get(rank, between)
        seconds = float(getattr(column, name)[row])
        if 1 < rank < ranks - 1:
            ends = float(getattr(first, name)[row] + getattr(last, name)[row] + getattr(between, name)[row])
            seconds = min(seconds, max(float(getattr(sums, name)[row]) - ends, 0.0) / (ranks - 3))
        return seconds / stages

    forward, backward, weight = of("forward"), of("backward"), of("weight")
    return {
        "forward": forward,
        "backward": backward,
        "backward_input": max(backward - weight, 0.0),
        "backward_weight": weight,
    }


def _cost(plan: Schedule, parts: list[_Parts]) -> Callable[[Action], float]:
    by_stage = [parts[rank] for rank in plan.rank_of]
    return lambda action: by_stage[action.stage][action.kind]


def _send(plan: Schedule, border: Border, row: int) -> Callable[[Action], float]:
    ranks = range(plan.ranks)
    seconds = {(rank, peer): border.seconds(row, rank, peer) for rank in ranks for peer in ranks}
    return lambda action: seconds[plan.rank_of[action.stage], action.peer]
