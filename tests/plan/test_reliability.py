"""What failures leave of a run, in closed form: the limits, and the figures that are usual."""

from __future__ import annotations

import math

import pytest

from scalewright.plan.reliability import (
    FOREVER,
    Habits,
    best_interval,
    daly_interval,
    failures,
    mtbf_s,
    renewal_goodput,
    rhythm,
    usual,
    young_interval,
)


@pytest.mark.parametrize(("save", "between"), [(0.5, 1e4), (30.0, 11_150.0), (120.0, 3e3), (1000.0, 900.0)])
def test_no_interval_is_better_than_the_best(save: float, between: float) -> None:
    best = best_interval(save, between)
    there = renewal_goodput(best, save, 60.0, between)
    assert all(renewal_goodput(best * change, save, 60.0, between) < there for change in (0.8, 0.97, 1.03, 1.25))


def test_young_and_daly_are_its_limits() -> None:
    for save in (1e-3, 1.0, 30.0):
        assert young_interval(save, 1e8) == pytest.approx(best_interval(save, 1e8), rel=1e-3)
    for save in (30.0, 300.0, 1000.0):  # where Young is 2 to 13% off
        assert daly_interval(save, 1e4) == pytest.approx(best_interval(save, 1e4), rel=2e-3)
    assert daly_interval(50.0, 20.0) == 20.0


def test_without_saves_or_stops_all_time_is_work_and_with_many_stops_none() -> None:
    assert renewal_goodput(100.0, 0.0, 0.0, FOREVER) == pytest.approx(1.0)
    assert renewal_goodput(100.0, 5.0, 0.0, FOREVER) == pytest.approx(100 / 105)
    assert renewal_goodput(100.0, 5.0, 60.0, 0.01) == 0.0
    assert mtbf_s(8, 0.0) == FOREVER


def test_restarts_as_long_as_the_time_between_stops_leave_e_to_the_minus_one() -> None:
    """`1 - R/M` would leave nothing."""
    assert renewal_goodput(1.0, 0.0, 1000.0, 1000.0) == pytest.approx(math.exp(-1), rel=1e-3)


def test_the_causes_are_llama_3_s() -> None:
    causes = failures()["causes"].values()
    assert sum(cause["count"] for cause in causes) == 419
    hours = 54 * 24 * 16384
    assert usual().rate == pytest.approx(419 / hours, rel=5e-3)
    assert usual().planned_rate == pytest.approx(47 / hours, rel=5e-3)
    assert 100 < usual().found_s < 200  # a tenth hangs for ten minutes
    assert 0.5 < usual().spread < 1.0


def test_the_usual_goodput_is_that_of_llama_3() -> None:
    """More than 90% of the time was effective on 16,384 H100, with a state of 12 bytes for each of 405B."""
    assert 0.9 < rhythm(16384, Habits(405.85e9 * 12)).goodput() < 0.945


def test_it_falls_with_the_devices_and_stays_above_0() -> None:
    shares = [rhythm(count).goodput() for count in (1, 8, 1024, 16384, 10**7)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.999
    assert shares[-1] > 0


def test_a_larger_state_costs_more() -> None:
    assert rhythm(1024, Habits(1e12)).goodput() > rhythm(1024, Habits(1e13)).goodput()
    base = usual()
    assert base.save_s(899e9, 32) == pytest.approx(143, rel=0.6)  # Baidu: shared storage, 32 writers
    assert base.save_s(2.3e12, 384) == pytest.approx(40, rel=0.25)  # BLOOM
    assert base.copy_s(899e9, 32) < base.save_s(899e9, 32) / 10


def test_a_run_s_own_numbers_take_the_place_of_usual_ones() -> None:
    own = Habits(8e12, step_s=10.0, save_every=90, evaluation=0.1)
    asked = rhythm(1024, own, rate=1e-4, storage=1e11, restart_s=300.0)
    assert (asked.save_s, asked.written_s, asked.interval_s, asked.restart_s) == (80.0, 80.0, 900.0, 300.0)
    assert asked.goodput() == pytest.approx(renewal_goodput(990.0, 80.0, 300.0, 3600 / 0.1024) / 1.1)
    assert asked.best_s % 10.0 == 0
    assert asked.goodput(asked.best_s) > asked.goodput()
    later = rhythm(1024, Habits(8e12, asynchronous=True))
    assert later.save_s < later.written_s <= later.best_s  # the next save waits for this one's writing
