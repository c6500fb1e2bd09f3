"""Seconds that a pipeline adds to its slowest rank's work: fill, drain, and messages that nothing hides.

    bubble    step of unequal ranks (spec/schedules/bubble.py) - m t_slowest
    messages  2 (p - 1) of the fill and the drain, and of the slowest rank with its others what isn't hidden

Fill and drain: the first activation goes up over p - 1 borders, the last gradient down. In between a trainer with
overlap.p2p hides that share. Two ranks with one micro-batch exchange two messages, and no others. Machines whose
processes were timed: their pipelines are simulated, message by message, by the clock of the schedule:

    rank 0   F0 > F1 >  .   .  B0 ...      seconds of F, B, W of each rank, and of each border's message,
    rank 1   ===> F0 B0 > ...              inside a machine or between two: spec/schedules/clock.py

A message travels while both ends compute, yet a 1F1B pipeline waits for it: rank k has p - k micro-batches under way,
whose forwards and backwards need 2 (p - 1 - k) messages one after the other, so that every p of them take at least
2 (p - 1) messages longer. A weight part (zb-h1) fills that wait. No formula here: schedules are too many, and borders
differ. After 4 p micro-batches a pipeline repeats itself every p; the rest follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.cpu import Cpu
from scalewright.plan.cost.links import message_bytes
from scalewright.plan.cost.price_list import PriceList
from scalewright.plan.cost.volumes import Volumes
from scalewright.plan.request import SCHEDULES
from scalewright.spec.schedules.action import Action
from scalewright.spec.schedules.bubble import RankCost, step_columns
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.clock import simulate
from scalewright.spec.schedules.kinds import find_kind
from scalewright.spec.volumes import Transfer

Costs = tuple[RankCost, ...]  # of the fullest rank between the ends, the first and the last
FILLED = 4  # micro-batches a rank until the pipeline repeats itself
TIMED = np.array([find_kind(kind).trained and find_kind(kind).flushes for kind in SCHEDULES])
_plan = lru_cache(maxsize=512)(schedule)
_Parts = dict[str, float]  # seconds of one stage's computations, by kind


def bubble(at: Columns, costs: Costs, slowest: np.ndarray) -> np.ndarray:
    """Seconds that the step is longer than `slowest`'s micro-batches."""
    t = at.table
    idle, piped = np.zeros(len(t)), t.pp > 1
    if not piped.any():
        return idle
    between, first, last = costs
    total = _sums(at, costs)
    for index in np.unique(t.schedule[piped]):
        rows = np.flatnonzero(piped & (t.schedule == index))
        ends = (_take(first, rows), _take(between, rows), _take(last, rows))
        sizes = (t.pp[rows], t.virtual_stages[rows], t.accumulation[rows])
        seconds = step_columns(SCHEDULES[index], *sizes, ends, _take(total, rows))
        idle[rows] = np.maximum(seconds - t.accumulation[rows] * slowest[rows], 0.0)
    return idle


def _sums(at: Columns, costs: Costs) -> RankCost:
    """Over all ranks. Those between hold what blocks the ends leave, on average less than the fullest."""
    t = at.table
    left = at.work.blocks - t.stages[:, 1] - t.stages[:, 2]
    times = np.clip(left / np.maximum(t.stages[:, 0], 1.0), 0.0, np.maximum(t.pp - 2, 0.0))
    columns = zip(*(vars(cost).values() for cost in costs), strict=True)
    return RankCost(*(first + times * between + last for between, first, last in columns))


def _take(cost: RankCost, rows: np.ndarray | int) -> RankCost:
    return RankCost(*(column[rows] for column in vars(cost).values()))


def clocked(
    at: Columns, costs: Costs, slowest: np.ndarray, fill: np.ndarray, message: np.ndarray, prices: Cpu
) -> tuple[np.ndarray, np.ndarray]:
    """The bubble and the exposed messages of pipelines between machines, by the clock.

    `fill`, `message`: by formulas; they stay where a schedule isn't run, and inside a machine, whose own cores copy
    every message.
    """
    t = at.table
    rows = np.flatnonzero((t.pp > 1) & TIMED[t.schedule] & (prices.sending < 1) & (prices.crowd == 1))
    if not len(rows):
        return fill, message
    stride = t.devices / t.pp
    near, far = prices.network.ends(np.asarray(message_bytes(at)), stride)
    node, sums, whole = prices.network.between.node, _sums(at, costs), np.zeros(len(rows))
    for i, row in enumerate(rows.tolist()):
        p, v, m = (int(size[row]) for size in (t.pp, t.virtual_stages, t.accumulation))
        border, ends = Border(near[row], far[row], stride[row], node), tuple(_take(cost, row) for cost in costs)
        whole[i] = makespan(SCHEDULES[t.schedule[row]], p, v, m, ends, _take(sums, row), border)
    waits = np.maximum(whole - t.accumulation[rows] * slowest[rows], 0.0)
    fill, message = fill.copy(), message.copy()
    fill[rows] = np.minimum(fill[rows], waits)
    message[rows] = waits - fill[rows]
    return fill, message


def unhidden(at: Columns, prices: PriceList) -> np.ndarray:
    """The share of a message that holds up the computation, once the pipeline runs."""
    return np.asarray(1 - prices.beside * at.c["overlap.p2p"] * at.trainer.overlap_p2p)


def message_seconds(at: Columns, prices: PriceList) -> np.ndarray:
    """Seconds of one message to the next stage."""
    return prices.network(Transfer("pp", "send", message_bytes(at), 1.0, "all"))


def messages(
    at: Columns, seats: Sequence[PipelineRank], totals: np.ndarray, volumes: Volumes, prices: PriceList
) -> np.ndarray:
    """Exposed seconds of a step's messages; `totals`: seconds of a micro-batch by rank [seats, rows].

    A rank waits for what arrives, and, where its own cores copy it (`sending`), for what it sends. One that
    computes less than the slowest has time for it.
    """
    t = at.table
    if not (t.pp > 1).any():
        return np.zeros(len(t))
    message, waited = message_seconds(at, prices), unhidden(at, prices) + prices.sending
    ranks = []
    for seat, total in zip(seats, totals, strict=True):
        sent = volumes.pipeline(seat)
        gathers = sum(x.calls * prices.network(x) for x in sent if x.axis == "tp")
        calls = sum(x.calls for x in sent if x.kind == "send")
        others = np.maximum(calls - (2.0 - seat.first - seat.last), 0.0)  # beside those of fill and drain
        ranks.append(t.accumulation * total + others * waited * message + gathers)
    ranks[0] = np.where(t.pp > 2, ranks[0], 0.0)
    fill = 2 * (t.pp - 1) * message
    return np.where(t.pp > 1, fill + np.max(ranks, axis=0) - t.accumulation * totals.max(0), 0.0)


@dataclass(frozen=True)
class Border:
    """Seconds of a message to a neighbour on the same machine, and on another."""

    near: float
    far: float
    stride: float  # processes of a pipeline rank
    node: float  # processes of a machine

    def seconds(self, rank: int, peer: int) -> float:
        """Of a message between two pipeline ranks."""
        crosses = rank * self.stride // self.node != peer * self.stride // self.node
        return float(self.far if crosses else self.near)


def makespan(kind: str, p: int, v: int, m: int, costs: Costs, sums: RankCost, border: Border) -> float:
    """Seconds of a pipeline of m micro-batches; `costs`: the fullest rank between, first, last; `sums`: over all."""
    parts = [_rank_parts(rank, p, costs, sums, v) for rank in range(p)]
    time = partial(_simulated, kind, p, v, parts, border)
    if m <= FILLED * p:
        return time(m)
    filled, before = time(FILLED * p), time((FILLED - 1) * p)
    return filled + (m / p - FILLED) * (filled - before)


def _simulated(kind: str, p: int, v: int, parts: list[_Parts], border: Border, m: int) -> float:
    plan, ranks = _plan(kind, p, v, m), range(p)
    by_stage = [parts[rank] for rank in plan.rank_of]
    sent = {(rank, peer): border.seconds(rank, peer) for rank in ranks for peer in ranks}

    def cost(action: Action) -> float:
        return by_stage[action.stage][action.kind]

    return simulate(plan, cost, lambda action: sent[plan.rank_of[action.stage], action.peer]).makespan


def _rank_parts(rank: int, ranks: int, costs: Costs, sums: RankCost, stages: int) -> _Parts:
    """Seconds of a rank's stages; the second rank is the fullest between, the others share what is left."""
    between, first, last = costs

    def of(name: str) -> float:
        seconds = float(getattr({0: first, ranks - 1: last}.get(rank, between), name))
        if 1 < rank < ranks - 1:
            ends = sum(float(getattr(cost, name)) for cost in costs)
            seconds = min(seconds, max(float(getattr(sums, name)) - ends, 0.0) / (ranks - 3))
        return seconds / stages

    backward, weight = of("backward"), of("weight")
    split = {"backward_input": max(backward - weight, 0.0), "backward_weight": weight}
    return {"forward": of("forward"), "backward": backward, **split}
