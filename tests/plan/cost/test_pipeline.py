"""Pipelines priced by the clock: what a message costs each schedule, and long pipelines from short ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scalewright.plan.cost.pipeline import FILLED, TIMED, Border, makespan
from scalewright.plan.request import SCHEDULES
from scalewright.spec.schedules.bubble import RankCost, idle_columns

F, B, W = 1.0, 2.0, 1.0


def cost(forward: float = F, backward: float = B, weight: float = W) -> RankCost:
    return RankCost(*map(np.float64, (forward, backward, weight)))


def seconds(kind: str, p: int, m: int, message: float, v: int = 1, node: float = 1.0, near: float = 0.0) -> float:
    """The step of a pipeline of equal ranks, one a machine unless `node` is more."""
    return makespan(kind, p, v, m, (cost(),) * 3, cost(p * F, p * B, p * W), Border(near, message, 1.0, node))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zb-h1"])
def test_without_messages_it_is_the_closed_form(kind):
    for p, m in product((2, 4), (4, 8, 40)):
        f, i, w = (F, B - W, W) if kind == "zb-h1" else (F, B, 0.0)
        idle = float(idle_columns(kind, p, 1, m, f, i, w))
        assert seconds(kind, p, m, 0.0) == pytest.approx(m * (F + B) + idle)


def test_1f1b_waits_for_a_message_of_every_micro_batch():
    """2 (p - 1) messages and more for every p micro-batches, though they travel beside the work."""
    message = 0.1
    waits = {p: seconds("1f1b", p, 4 * p, message) - seconds("1f1b", p, 4 * p, 0.0) for p in (2, 4)}
    assert waits[2] == pytest.approx(2 * message * 4)
    assert waits[4] >= 2 * 3 * message * 4


def test_a_weight_part_hides_messages_and_gpipe_sends_them_beside_its_work():
    message = 0.1
    plain, split, gpipe = (
        seconds(kind, 2, 8, message) - seconds(kind, 2, 8, 0.0) for kind in ("1f1b", "zb-h1", "gpipe")
    )
    assert plain == pytest.approx(8 * message)
    assert split <= 4.01 * message  # at both ends, where there are no weight parts to do
    assert gpipe == pytest.approx(2 * message)


def test_a_message_longer_than_the_work_sets_the_pace():
    """A link carries one message at a time: m of them take m times as long."""
    for kind in ("1f1b", "zb-h1", "gpipe"):
        assert seconds(kind, 2, 8, 10.0) >= 8 * 10.0


def test_borders_inside_a_machine_cost_their_own_messages():
    apart, together = seconds("1f1b", 4, 8, 0.5, node=1.0), seconds("1f1b", 4, 8, 0.5, node=2.0, near=0.01)
    assert together < apart
    assert together > seconds("1f1b", 4, 8, 0.0)


@pytest.mark.parametrize(("kind", "v"), [("1f1b", 1), ("zb-h1", 1), ("gpipe", 1), ("interleaved", 2), ("zbv", 2)])
def test_a_long_pipeline_follows_from_a_short_one(kind, v):
    """By its period of p micro-batches, within 1% of the whole simulation (ramps of other lengths remain)."""
    for p, rounds in ((2, 9), (4, 7)):
        message, m = 0.15, p * rounds
        whole = _simulated(kind, p, v, m, message)
        assert m > FILLED * p
        assert seconds(kind, p, m, message, v) == pytest.approx(whole, rel=0.01)


def _simulated(kind: str, p: int, v: int, m: int, message: float) -> float:
    from scalewright.spec.schedules.build import schedule
    from scalewright.spec.schedules.clock import StageCost, simulate

    return simulate(schedule(kind, p, v, m), StageCost(F / v, (B - W) / v, W / v), message).makespan


def test_unequal_ranks_share_what_the_ends_leave():
    """Of five ranks, the two beside the fullest have half of the rest each."""
    costs = (cost(3.0, 0.0, 0.0), cost(1.0, 0.0, 0.0), cost(2.0, 0.0, 0.0))  # between, first, last
    step = makespan("gpipe", 5, 1, 1, costs, cost(10.0, 0.0, 0.0), Border(0.0, 0.0, 1.0, 1.0))
    assert step == pytest.approx(1 + 3 + 2 + 2 + 2)


def test_only_schedules_that_run_are_timed():
    assert {kind for kind, timed in zip(SCHEDULES, TIMED, strict=True) if not timed} == {"pipedream", "dualpipe"}
