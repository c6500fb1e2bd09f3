"""A prediction cut into its pipeline's stages: seconds and memory of each, and the schedule on the clock.

    stages(prediction)   one dict a stage of the model, in order
    pipeline(prediction) the schedule of spec/schedule.py, simulated with these seconds

The timeline's formulas look at three ranks only; here every rank goes through them, so that the slowest and
the fullest of these are the step's. The simulated pipeline takes what the step's micro-batches, bubble and
messages take, within the closed forms' own error (spec/schedules/unequal.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scalewright.plan.cost.activations import block_bytes
from scalewright.plan.cost.columns import Columns, Place
from scalewright.plan.cost.links import message_seconds
from scalewright.plan.cost.memory import GIB, KINDS, rank_memory
from scalewright.plan.cost.microbatch import Micro, exchanges, micro
from scalewright.plan.cost.pipeline import unhidden
from scalewright.plan.cost.price_list import price_list
from scalewright.plan.cost.states import padded_sums
from scalewright.plan.cost.table import stage_counts
from scalewright.plan.predict import Prediction
from scalewright.plan.request import Request
from scalewright.spec.schedule import Action, StageCost, Timing, schedule, simulate, stage_ranks


def stages(found: Prediction) -> list[dict[str, Any]]:
    """Every stage of the model, in order.

    {stage, rank, layers, seconds {forward, backward, backward_input, backward_weight, send, held_up},
    memory_gib {...}}

    Seconds of one micro-batch: `backward` is both parts with what is recomputed; `send` is a message's to the
    next stage, `held_up` what it takes of the computing rank before or after a forward or backward.
    `memory_gib` is that of the pipeline rank that holds the stage, all of its stages together. In dualpipe
    each stage is on two ranks; the one of the way down is named.
    """
    cut = _Cut(found)
    seconds = cut.seconds
    memory = cut.memory
    return [
        {
            "stage": stage,
            "rank": cut.owners[stage],
            "layers": layers,
            "seconds": {
                "forward": seconds[stage].forward,
                "backward": seconds[stage].backward,
                "backward_input": seconds[stage].backward_input,
                "backward_weight": seconds[stage].backward_weight,
                "send": cut.send,
                "held_up": cut.held_up,
            },
            "memory_gib": memory[cut.owners[stage]],
        }
        for stage, layers in enumerate(cut.layers)
    ]


def pipeline(found: Prediction) -> Timing:
    """The schedule of a step on the clock; raises UserError where there is none of these sizes.

    A trainer that doesn't send beside its computation is held up by every message, at both ends. Of
    pipedream it is the first step: the fill that later ones don't pay is in it.
    """
    cut, request = _Cut(found), found.request
    plan = schedule(request.schedule, request.pp, request.virtual_stages, max(1, round(request.accumulation)))
    costs = cut.seconds

    def seconds(action: Action) -> float:
        one = float(getattr(costs[plan.model_stage(action.stage)], action.kind))
        return one + (0.0 if action.kind == "backward_weight" else cut.held_up)

    return simulate(plan, seconds, cut.send)


@dataclass
class _Cut:
    """One prediction's stages; what follows from its request, and what its outcome says of each."""

    of: Prediction

    @property
    def request(self) -> Request:
        return self.of.request

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Blocks of every stage of the model."""
        return stage_counts(self.request)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of every stage; dualpipe's way down first, then up."""
        r = self.request
        return stage_ranks(r.schedule, r.pp, r.virtual_stages) if r.pp > 1 else (0,)

    @cached_property
    def _rank_stages(self) -> list[list[int]]:
        """Model stages of every rank."""
        held: list[list[int]] = [[] for _ in range(self.request.pp)]
        for stage, rank in enumerate(self.owners):
            held[rank].append(stage % len(self.layers))
        return held

    def _places(self, held: list[list[int]], ranks: list[int]) -> Place:
        """These sets of stages as rows of a table; a stage that two ways share counts half."""
        share = len(self.layers) / len(self.owners)
        last = len(self.layers) - 1
        return Place(
            np.array(ranks, dtype=float),
            np.array([share * sum(self.layers[stage] for stage in some) for some in held]),
            np.array([share * float(0 in some) for some in held]),
            np.array([share * float(last in some) for some in held]),
        )

    def _columns(self, rows: int) -> Columns:
        step = self.of.of.outcome.step
        table = step.at.table.take(np.full(rows, self.of.row))
        return Columns(table, step.at.facts, step.at.prices, step.at.c)

    def _micro(self, place: Place, alone: bool = False) -> Micro:
        """`alone`: the places are single stages, not whole ranks."""
        at = self._columns(len(place.rank))
        if alone:
            table = replace(at.table, virtual_stages=np.ones(len(at.table)))
            at = Columns(table, at.facts, at.prices, at.c)
        return micro(at, place, exchanges(at))

    @cached_property
    def seconds(self) -> list[StageCost]:
        """Every stage's; a rank's waits for the host are spread over its stages."""
        pp, times = self.request.pp, len(self.owners) / len(self.layers)
        ranks = self._micro(self._places(self._rank_stages, list(range(pp))))
        alone = self._micro(
            self._places([[s] for s in range(len(self.layers))], list(self.owners[: len(self.layers)])),
            alone=True,
        )
        slower = (
            times * (ranks.total / np.maximum(ranks.device, 1e-30))[list(self.owners[: len(self.layers)])]
        )
        forward, weight = alone.front * slower, alone.weight * slower
        back = (alone.device - alone.front) * slower
        return [
            StageCost(float(f), float(b - w), float(w)) for f, b, w in zip(forward, back, weight, strict=True)
        ]

    @cached_property
    def memory(self) -> list[dict[str, float]]:
        """GiB by kind, of every rank."""
        pp, step = self.request.pp, self.of.of.outcome.step
        table = step.at.table.take(np.full(pp, self.of.row))
        place = self._places(self._rank_stages, list(range(pp)))
        facts, c = step.at.facts, step.at.c
        block, sums = block_bytes(table, facts, c), padded_sums(table, facts)
        found = rank_memory(table, facts, c, place, block, sums)
        return [{kind: float(found[kind][rank]) / GIB for kind in KINDS} for rank in range(pp)]

    @cached_property
    def send(self) -> float:
        """Seconds of a message to the next stage."""
        if self.request.pp == 1:
            return 0.0
        at = self._columns(1)
        return float(message_seconds(at, price_list(at).network)[0])

    @cached_property
    def held_up(self) -> float:
        """Seconds that a message holds up either end: what isn't sent beside its computation."""
        at = self._columns(1)
        return self.send * float(unhidden(at, price_list(at))[0])
