"""The pipeline stages of a prediction: seconds and memory of each, and the simulated schedule.

    stages(prediction)    one dict per stage of the model, in order
    pipeline(prediction)  the schedule of spec/schedule.py, simulated with these seconds

The prediction evaluates the formulas for three ranks only, this file for every rank; the slowest and the
fullest are those of the prediction. The simulated pipeline takes as long as the prediction's micro-batches,
bubble and messages, within the closed forms' error (spec/schedules/bubble.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalewright.plan.cost.activations import block_bytes
from scalewright.plan.cost.columns import PipelineRank, PricedColumns
from scalewright.plan.cost.memory import GIB, KINDS, rank_memory
from scalewright.plan.cost.microbatch import Micro, exchanges, micro
from scalewright.plan.cost.pipeline import message_seconds, unhidden
from scalewright.plan.cost.price_list import price_list
from scalewright.plan.cost.table import stage_counts
from scalewright.plan.predict import Prediction
from scalewright.plan.records import Stage
from scalewright.plan.request import Request
from scalewright.spec.schedule import Action, StageCost, Timing, schedule, simulate, stage_ranks


def stages(prediction: Prediction) -> list[Stage]:
    """Every stage of the model, in order.

    Seconds of one micro-batch: `backward` is both parts and the recomputation; `send` is a message to the next stage,
    `held_up` the part of it that blocks the computing rank, at a forward or backward. `memory_gib` is that of the
    stage's pipeline rank, with all of its stages. In dualpipe each stage is on two ranks; `rank` is the one on the way
    down.
    """
    cut, parts = _Stages(prediction), ("forward", "backward", "backward_input", "backward_weight")
    message = {"send": cut.send, "held_up": cut.held_up}
    return [
        {
            "stage": stage,
            "rank": rank,
            "layers": layers,
            "seconds": {part: float(getattr(seconds, part)) for part in parts} | message,
            "memory_gib": cut.memory[rank],
        }
        for stage, (rank, layers, seconds) in enumerate(zip(cut.owners, cut.layers, cut.seconds, strict=False))
    ]


def pipeline(prediction: Prediction) -> Timing:
    """The simulated schedule of a step; raises UserError where the schedule doesn't allow these sizes.

    Messages block both ends in a trainer that doesn't overlap them with computation. For pipedream this is
    the first step, whose pipeline fill later steps don't repeat.
    """
    cut, request = _Stages(prediction), prediction.request
    plan = schedule(request.schedule, request.pp, request.virtual_stages, max(1, round(request.accumulation)))
    costs = cut.seconds

    def seconds(action: Action) -> float:
        computing = float(getattr(costs[plan.model_stage(action.stage)], action.kind))
        return computing + (0.0 if action.kind == "backward_weight" else cut.held_up)

    return simulate(plan, seconds, cut.send)


@dataclass
class _Stages:
    """The stages of one prediction, evaluated with its formulas."""

    prediction: Prediction

    @property
    def request(self) -> Request:
        return self.prediction.request

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The number of blocks of every stage of the model."""
        return stage_counts(self.request)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of every stage; for dualpipe the way down first, then up."""
        r = self.request
        return stage_ranks(r.schedule, r.pp, r.virtual_stages) if r.pp > 1 else (0,)

    @cached_property
    def _rank_stages(self) -> list[list[int]]:
        stages: list[list[int]] = [[] for _ in range(self.request.pp)]
        for stage, rank in enumerate(self.owners):
            stages[rank].append(stage % len(self.layers))
        return stages

    def _places(self, groups: list[list[int]], ranks: Sequence[int]) -> PipelineRank:
        """These groups of stages as rows of a table; a stage that is on two ranks counts half."""
        share, last = len(self.layers) / len(self.owners), len(self.layers) - 1
        blocks = [(sum(self.layers[stage] for stage in group), 0 in group, last in group) for group in groups]
        return PipelineRank(np.array(ranks, dtype=float), *(share * np.array(blocks, dtype=float).T))

    def _columns(self, rows: int) -> PricedColumns:
        step = self.prediction.table.outcome.step
        table = step.at.table.take(np.full(rows, self.prediction.row))
        return PricedColumns(table, step.at.facts, step.at.c, step.at.prices)

    def _micro(self, place: PipelineRank, single: bool = False) -> Micro:
        """The cost of a micro-batch at these places; `single`: they are single stages, not whole ranks."""
        columns = self._columns(len(place.rank))
        if single:
            columns.table = replace(columns.table, virtual_stages=np.ones(len(place.rank)))
        return micro(columns, place, exchanges(columns))

    @cached_property
    def seconds(self) -> list[StageCost]:
        """The seconds of every stage; a rank's waits for the host are spread over its stages."""
        owners = list(self.owners[: len(self.layers)])
        ranks = self._micro(self._places(self._rank_stages, range(self.request.pp)))
        alone = self._micro(self._places([[s] for s in range(len(self.layers))], owners), single=True)
        slower = (ranks.total / np.maximum(ranks.device, 1e-30))[owners] * (len(self.owners) / len(self.layers))
        forward, weight = alone.front * slower, alone.weight * slower
        back = (alone.device - alone.front) * slower
        return [StageCost(float(f), float(b - w), float(w)) for f, b, w in zip(forward, back, weight, strict=True)]

    @cached_property
    def memory(self) -> list[dict[str, float]]:
        """GiB by kind, of every rank."""
        columns, ranks = self._columns(self.request.pp), range(self.request.pp)
        kinds = rank_memory(columns, self._places(self._rank_stages, ranks), block_bytes(columns))
        return [{kind: float(kinds[kind][rank]) / GIB for kind in KINDS} for rank in ranks]

    @cached_property
    def send(self) -> float:
        """Seconds of a message to the next stage."""
        if self.request.pp == 1:
            return 0.0
        at = self._columns(1)
        return float(message_seconds(at, price_list(at))[0])

    @cached_property
    def held_up(self) -> float:
        """Seconds that a message blocks either end: the part that doesn't overlap with computation."""
        at = self._columns(1)
        return self.send * float(unhidden(at, price_list(at))[0])
