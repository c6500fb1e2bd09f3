"""Steps of ranks that cost differently: the closed form against the clock, on random stages."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from scalewright.spec.schedule import StageCost, idle_time, schedule, simulate
from scalewright.spec.schedules.bubble import RankCost, idle_columns, step_columns

# A last stage up to two and a half times as long as others (a head), and a longer first; or a block less of
# four to eight anywhere. Bias, and worst of 40: the errors of the closed forms on such pipelines, which
# have costs of ranks, not of their stages.
EXACT, NEAR, CHUNKED = (1e-9, 1e-9), (0.01, 0.05), (0.04, 0.13)
TOLERANCE = {
    ("gpipe", 1): EXACT,
    ("1f1b", 1): NEAR,
    ("zb-h1", 1): NEAR,
    ("interleaved", 2): CHUNKED,
    ("interleaved", 4): CHUNKED,
    ("zb-interleaved", 2): CHUNKED,
    ("zbv", 2): CHUNKED,
    ("dualpipev", 2): CHUNKED,
    ("dualpipe", 2): CHUNKED,
}


def head_heavy(stages: int, dice: random.Random) -> list[float]:
    return [1 + dice.uniform(0, 0.2), *[1.0] * (stages - 2), 1 + dice.uniform(0, 1.5)]


def uneven(stages: int, dice: random.Random) -> list[float]:
    blocks = dice.choice([4, 6, 8])
    return [(blocks - dice.choice([0, 1])) / blocks for _ in range(stages)]


def costs(kind: str, ranks: int, chunks: int, make: Callable[[int, random.Random], list[float]],
          dice: random.Random) -> list[StageCost]:  # fmt: skip
    times = make(ranks if kind == "dualpipe" else ranks * chunks, dice)
    stages = [StageCost(t, 1.15 * t, 0.95 * t) for t in times]
    return stages * 2 if kind == "dualpipe" else stages  # each way has the same stages


def by_rank(kind: str, stages: list[StageCost], owners: tuple[int, ...], ranks: int) -> list[RankCost]:
    share = 0.5 if kind == "dualpipe" else 1.0  # half of the micro-batches on each way
    sums = np.zeros((ranks, 3))
    for stage, rank in zip(stages, owners, strict=True):
        sums[rank] += share * np.array([stage.forward, stage.backward, stage.backward_weight])
    return [RankCost(*(np.array([value]) for value in row)) for row in sums]


def error(kind: str, chunks: int, make: Callable[[int, random.Random], list[float]], dice: random.Random) -> float:
    ranks = dice.choice([2, 4, 8])
    micros = ranks * dice.choice([2, 4, 8])
    stages = costs(kind, ranks, chunks, make, dice)
    plan = schedule(kind, ranks, chunks, micros)
    each = by_rank(kind, stages, plan.rank_of, ranks)
    fullest = max(each[1:-1], key=lambda cost: float(cost.total[0])) if ranks > 2 else each[1]
    total = RankCost(*(np.sum([getattr(cost, name) for cost in each], 0) for name in ("forward", "backward", "weight")))
    sizes = (np.array([float(ranks)]), np.array([float(chunks)]), np.array([float(micros)]))
    step = step_columns(kind, *sizes, (each[0], fullest, each[-1]), total)
    return float(step[0]) / simulate(plan, stages).makespan - 1


@pytest.mark.parametrize("make", [head_heavy, pytest.param(uneven, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "chunks"), TOLERANCE)
def test_unequal_ranks_against_the_clock(
    kind: str, chunks: int, make: Callable[[int, random.Random], list[float]]
) -> None:
    dice = random.Random(f"{kind} {chunks} {make.__name__}")
    errors = np.array([error(kind, chunks, make, dice) for _ in range(40)])
    bias, worst = TOLERANCE[kind, chunks]
    assert abs(errors.mean()) <= bias, errors.mean()
    assert np.abs(errors).max() <= worst, np.abs(errors).max()


@pytest.mark.parametrize(("kind", "chunks"), [*TOLERANCE, ("pipedream", 1)])
def test_equal_ranks_are_the_papers(kind: str, chunks: int) -> None:
    ranks, micros = 4, 16
    stage = StageCost(1.0, 1.2, 0.8)
    cost = RankCost(*(np.array([(1 if kind == "dualpipe" else chunks) * x]) for x in (1.0, 2.0, 0.8)))
    total = RankCost(*(ranks * getattr(cost, name) for name in ("forward", "backward", "weight")))
    sizes = (np.array([4.0]), np.array([float(chunks)]), np.array([16.0]))
    step = step_columns(kind, *sizes, (cost, cost, cost), total)
    assert step[0] == pytest.approx(micros * cost.total[0] + idle_time(kind, ranks, chunks, micros, stage))


@pytest.mark.parametrize(("kind", "chunks"), [("zb-h1", 1), ("zb-interleaved", 2), ("zbv", 2), ("interleaved", 2)])
@pytest.mark.parametrize("micros", [1, 2, 3, 5, 7])
def test_pipelines_too_short_to_fill(kind: str, chunks: int, micros: int) -> None:
    """Beyond the papers' conditions: within a tenth of the step."""
    ranks, cost = 8, StageCost(1.0, 1.2, 0.9)
    idle = float(idle_columns(kind, ranks, chunks, micros, 1.0, 1.2, 0.9))
    clock = idle_time(kind, ranks, chunks, micros, cost)
    busy = chunks * micros * 3.1
    assert idle == pytest.approx(clock, abs=0.1 * (clock + busy))


def test_one_micro_batch_is_gpipes_order_in_1f1b() -> None:
    """Its forward goes through all ranks, then its backward: no rank has anything to do meanwhile."""
    dice = random.Random(5)
    stages = costs("1f1b", 8, 1, head_heavy, dice)
    first, *between, last = by_rank("1f1b", stages, tuple(range(8)), 8)
    ranks = (first, between[0], last)
    sums = RankCost(
        *(np.sum([getattr(rank, part) for rank in (first, *between, last)], axis=0)
          for part in ("forward", "backward", "weight"))
    )  # fmt: skip
    ones = np.ones(1)
    steps = {kind: step_columns(kind, 8 * ones, ones, ones, ranks, sums)[0] for kind in ("gpipe", "1f1b")}
    assert steps["1f1b"] == pytest.approx(steps["gpipe"], rel=1e-9)
