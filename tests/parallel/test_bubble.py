"""The bubble that a pipeline really has, against the formula: stages that sleep instead of computing.

Sleeping ranks don't compete for cores, so two cores measure four ranks. What is timed is the runtime's own
record of its actions, as the report draws it.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import LocalGradients
from scalewright.parallel.pipeline import Pipeline
from scalewright.parallel.stages import Stages
from scalewright.parallel.timeline import ActionTimes
from scalewright.parallel.weights import Weights
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import COMPUTE, StageCost, bubble_fraction, stage_ranks
from worlds import run_world

POINTS = 0.05
# Steps at most, until one is near enough: other work on the machine wakes a sleeper late, by milliseconds,
# which makes a bubble larger, or smaller where all ranks sleep on. On an idle one the first or second does;
# after every few, all sleep twice as long, so that the same milliseconds are a smaller share.
TRIES, FEW = 15, 5


class _Sleep(torch.autograd.Function):
    """x as it is; its gradient takes a while."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        time.sleep(context.seconds)
        return slopes[0], None


class Sleeper(nn.Module):
    """A stage whose forward and whose gradients, the input's and the weight's, take given times."""

    def __init__(self, first: bool, cost: StageCost) -> None:
        super().__init__()
        self.first, self.cost, self.spec = first, cost, SimpleNamespace(hidden_size=4)
        self.weight = nn.Parameter(torch.ones(4))
        self.table = nn.Parameter(torch.ones(8, 4))

    def _embed(self, tokens: Tensor, _positions: Tensor | None) -> Tensor:
        return nn.functional.embedding(tokens, self.table)

    def forward(self, given: Tensor) -> Tensor:
        x = self._embed(given, None) if self.first else given
        time.sleep(self.cost.forward)
        slow: Tensor = _Sleep.apply(x, self.cost.backward_input)  # type: ignore[no-untyped-call]
        weight: Tensor = _Sleep.apply(self.weight, self.cost.backward_weight)  # type: ignore[no-untyped-call]
        return slow * weight


def _loss(out: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return out.sum(), torch.zeros(())


def measure(mesh: Mesh, layout: Layout, kinds: list[tuple[str, int]], cost: list[float]) -> list[float]:
    """For every kind of schedule: the bubble of its least disturbed step, as a share, of the idlest rank."""
    found = []
    for kind, virtual_stages in kinds:
        this = Layout.parse({**layout.dump(), "schedule": kind, "virtual_stages": virtual_stages})
        owners = stage_ranks(kind, layout.pp, virtual_stages)
        mine = [stage for stage, owner in enumerate(owners) if owner == mesh.index("pp")]
        sleepers = {stage: Sleeper(stage == 0, StageCost(*cost)) for stage in mine}
        stages = Stages(sleepers)  # type: ignore[arg-type]
        times = ActionTimes(mesh)
        sync = LocalGradients(Weights([]))
        pipeline = Pipeline(stages, this, mesh, sync, torch.float32)
        pipeline.recorder = times
        micros = [Micro(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2), {})] * this.accumulation
        wanted, steps = formula(kind, virtual_stages, this, cost), [1.0]
        while abs(nearest(steps, wanted) - wanted) > POINTS / 2 and len(steps) <= TRIES:
            longer = 2 ** ((len(steps) - 1) // FEW)
            for sleeper in sleepers.values():
                sleeper.cost = StageCost(*(longer * seconds for seconds in cost))
            pipeline.train(micros, _loss, torch.ones(()))
            steps.append(bubble(times.gather(len(steps))))  # the same on all ranks
        found.append(nearest(steps, wanted))
    return found


def nearest(steps: list[float], wanted: float) -> float:
    """Of the bubbles of some steps, the one that comes nearest to the wanted."""
    return min(steps, key=lambda bubble: abs(bubble - wanted))


def formula(kind: str, virtual_stages: int, layout: Layout, cost: list[float]) -> float:
    """What `spec/schedules/bubble.py` says."""
    return bubble_fraction(kind, layout.pp, virtual_stages, layout.accumulation, StageCost(*cost))


def bubble(picture: dict[str, Any]) -> float:
    """Idle / step of the rank that idles most; all ranks begin and end a step together."""
    ranks = picture["actions"]
    end = max(action["end_s"] for actions in ranks for action in actions)
    busy = [sum(a["end_s"] - a["start_s"] for a in actions if a["kind"] in COMPUTE) for actions in ranks]
    return 1 - min(busy) / float(end)


PLAIN = [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1)]
CHUNKED = [("interleaved", 2), ("zb-interleaved", 2), ("zbv", 2), ("dualpipev", 2)]


def _check(ranks: int, micros: int, kinds: list[tuple[str, int]], cost: list[float]) -> None:
    layout = {"devices": ranks, "pp": ranks, "global_batch": micros}
    measured = run_world(measure, layout, kinds, cost)[0]
    for (kind, virtual_stages), found in zip(kinds, measured, strict=True):
        wanted = formula(kind, virtual_stages, Layout.parse(layout), cost)
        assert abs(found - wanted) < POINTS, f"{kind}: measured {found:.3f}, formula {wanted:.3f}"


@pytest.mark.parametrize("kinds", [PLAIN, CHUNKED], ids=["plain", "chunked"])
def test_bubbles_of_two_ranks(kinds: list[tuple[str, int]]) -> None:
    _check(2, 4, kinds, [0.02, 0.02, 0.02])


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [PLAIN, CHUNKED], ids=["plain", "chunked"])
def test_bubbles_of_four_ranks(kinds: list[tuple[str, int]]) -> None:
    _check(4, 9, kinds, [0.03, 0.03, 0.03])


@pytest.mark.slow
def test_bubbles_of_uneven_parts() -> None:
    """An input part that takes longer than the weight part: what a long attention does."""
    _check(4, 8, [("1f1b", 1), ("zb-h1", 1), ("interleaved", 2), ("zbv", 2)], [0.025, 0.04, 0.02])
