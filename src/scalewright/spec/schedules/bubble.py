"""The bubble in closed form, as published (elsewhere it is simulated), and the activations that are alive.

    p ranks, v stages on each, m micro-batches; F, I, W seconds of one stage's forward, input and weight part

    gpipe, 1f1b      (p-1)(F+I+W)          Huang et al. 2019 §2.3; Narayanan et al. 2021 §2.2.1
    interleaved      (p-1)(F+I+W)          Narayanan et al. 2021 §2.2.2: (p-1)/(v m) of the ideal
    zb-h1            (p-1)(F+I-W)          Qi et al. 2023, table 1; W <= F, I; with m < p: (p-1)(F+I)-(m-1)W
    zb-interleaved   (p-1)(F+I-W)          ZB-H1's, in stages a v-th as long
    zbv              0 within each rank    Qi et al. 2023 §6: F = I = W, m >= 2p - 1; but rank r starts
                                           r F late, so that a common end costs (p-1) F
    dualpipev        (p-1)(FB+I+W-3W)      DeepSeek-AI, DualPipe's README (its PP is 2p here), for pairs
    dualpipe         (p/2-1)(FB+I+W-3W)    computed together in FB, the rank that idles most, F = I >= W
      without pairs  (d-1)(F+I-W) + max(0, (d-1)(I-F) - F), d = p or p/2: ours, by the clock
    pipedream        0                     Harlap et al. 2018: it fills once, not once a step

Micro-batches and costs outside these conditions are timed by `simulate`. `idle_columns` gives the same
formulas (kinds.py) for arrays, and beyond their conditions an estimate.

Where ranks cost differently, the pipelined part of a step is (`step_columns`, many pipelines at once)

    step = max over ranks k of   m t_k + idle(mean cost of the ranks beside k)

The slowest rank works without a pause but for fill and drain, which pass through the others' stages: GPipe exactly so
(Huang et al. 2019 §2.3). 1F1B's rank k waits for F and B of the ranks before it once, and for those of the ranks after
it at the start and again at the end, less its own work meanwhile: p-1-k forwards, and as many backwards (ours, found
by the clock), which is S where all are equal:

    S = F + B of the n = p-1-k ranks after k:   waits max(S - n F_k, 0) + max(S - n B_k, 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.clock import StageCost, simulate
from scalewright.spec.schedules.kinds import find_kind
from scalewright.spec.schedules.schedule import Schedule

UNIT = StageCost(1, 1, 1)  # the papers' usual picture: a backward takes twice its forward


def bubble_fraction(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float:
    """The bubble as a share of the step: idle / (idle + busy), of the rank that idles most.

    GPipe's and the zero-bubble papers divide so; Megatron-LM's divide by the ideal: `idle_time / busy_time`.
    """
    idle = idle_time(kind, ranks, virtual_stages, micro_batches, cost, overlapped, common_end)
    return idle / (idle + busy_time(kind, ranks, virtual_stages, micro_batches, cost, overlapped))


def busy_time(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
) -> float:
    """Seconds that a rank computes in a step: the ideal, v m (F+I+W), less the time saved by pairs.

    dualpipev and dualpipe: of the rank that computes the most pairs, at the fold.
    """
    record = find_kind(kind)
    if not record.splits and not record.both_ways:
        return virtual_stages * micro_batches * (cost.forward + cost.backward)
    unit = cost.forward + cost.backward_input + cost.backward_weight
    if record.split_all:
        return virtual_stages * micro_batches * unit
    # In dualpipe each way has half of the micro-batches, and a fold half as deep.
    depth, micros = (ranks // 2, micro_batches // 2) if record.both_ways else (ranks, micro_batches)
    saved = (2 * micros - 2 * depth - 1) * (unit - overlapped) if overlapped is not None else 0.0
    return 2 * micros * unit - saved


def idle_time(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float:
    """Seconds that a rank waits in a step, when all stages cost the same and messages take no time.

    `overlapped` is the time of a forward and a backward computed together (dualpipev, dualpipe). With
    `common_end` all ranks start and end a step together, as they do when the gradient's norm is clipped;
    without, each rank is timed from its first action to its last, as in Qi et al.
    """
    formula = closed_form(kind, ranks, virtual_stages, micro_batches, cost, overlapped, common_end)
    if formula is not None:
        return formula
    plan = schedule(kind, ranks, virtual_stages, micro_batches, pairs=overlapped is not None)
    timing = simulate(plan, cost, overlapped=overlapped)
    spans = (timing.makespan,) * ranks if common_end else timing.active
    return max(span - busy for span, busy in zip(spans, timing.busy, strict=True))


def closed_form(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float | None:
    """The formula of the table above; None where it doesn't hold."""
    f, i, w = cost.forward, cost.backward_input, cost.backward_weight
    if kind in ("gpipe", "1f1b", "interleaved"):  # a whole backward may differ from the sum of its parts
        i, w = cost.backward, 0.0
    elif not _holds(kind, ranks, micro_batches, cost, overlapped, common_end):
        return None
    elif kind == "zbv" and not common_end:
        return 0.0
    elif overlapped is not None and find_kind(kind).paired:
        depth = ranks // 2 if find_kind(kind).both_ways else ranks
        return (depth - 1) * (overlapped + (i + w) - 3 * w)
    return float(idle_columns(kind, ranks, virtual_stages, micro_batches, f, i, w))


def _holds(kind: str, ranks: int, micros: int, cost: StageCost, overlapped: float | None, common_end: bool) -> bool:
    """Whether a formula is exact for these sizes and costs."""
    f, i, w = cost.forward, cost.backward_input, cost.backward_weight
    if kind in ("pipedream", "zb-h1"):
        return True
    if kind == "zb-interleaved":
        return micros >= ranks
    if kind == "zbv":
        return micros >= 2 * ranks - 1 and (w <= f <= i if common_end else f == i == w)
    return common_end and (overlapped is None or w <= f == i)


Column = np.ndarray | float


def idle_columns(
    kind: str, ranks: Column, virtual_stages: Column, micro_batches: Column, f: Column, i: Column, w: Column
) -> np.ndarray:
    """Seconds that a rank waits in a step, for many pipelines of one kind; all arguments broadcast.

    f, i, w: seconds of one of the equal stages' forward, input part and weight part. Outside the
    conditions of this file's table (pipelines too short to fill), the result is an estimate.
    """
    p, v, m = (np.asarray(size, dtype=float) for size in (ranks, virtual_stages, micro_batches))
    return np.asarray(find_kind(kind).idle(p, v, m, f, i, w))


def peak_activations(schedule: Schedule, size: Sequence[float] | None = None, kept: float = 1.0) -> tuple[float, ...]:
    """The peak of each rank: micro-batches x stages, or bytes when `size` is the bytes of each stage.

    A forward holds one, the activation that it makes counted; a backward frees it. Of a split one the weight part still
    needs `kept` of it, inputs of the matmuls and the gradients at their outputs; 1, as the papers count: all of it.
    """
    change = {"forward": 1.0, "backward": -1.0, "backward_input": kept - 1.0, "backward_weight": -kept}
    peaks = []
    for rank in range(schedule.ranks):
        held = peak = 0.0
        for action in schedule.compute(rank):
            held += change[action.kind] * (size[action.stage] if size is not None else 1.0)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


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


RankCosts = tuple[RankCost, RankCost, RankCost]
Array = np.ndarray


def step_columns(
    kind: str, ranks: Array, virtual_stages: Array, micro_batches: Array, rank_costs: RankCosts, sums: RankCost
) -> Array:
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
            np.maximum(getattr(sums, part) - getattr(cost, part), 0.0) / others / chunks
            for part in ("forward", "backward", "weight")
        )
        idle = idle_columns(kind, p, v, m, f, b - w, w)
        if kind in ("1f1b", "interleaved"):
            idle = idle - _busy_meanwhile(place, p, m, cost, rank_costs, sums) / chunks
        step = np.maximum(step, m * cost.total + np.maximum(idle, 0.0))
    return step


def _busy_meanwhile(
    place: Array, ranks: Array, micro_batches: Array, cost: RankCost, rank_costs: RankCosts, sums: RankCost
) -> Array:
    """Seconds that 1F1B's rank at `place` works instead of waiting, while later, faster ranks work.

    A rank with no more micro-batches than ranks after it runs all its forwards first, as GPipe does: 0.
    """
    before = np.where(place > 0, rank_costs[0].total, 0.0)
    after = np.maximum(sums.total - before - cost.total, 0.0)
    later = ranks - 1 - place
    waits = np.maximum(after - later * cost.forward, 0.0) + np.maximum(after - later * cost.backward, 0.0)
    return np.asarray(np.where((later > 0) & (micro_batches > later), after - waits, 0.0))
