"""The simulation against the closed forms where both hold, and what only it has: bunches, spares, planned stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalewright.goodput.setting import Asked, Run, Setting, make_setting
from scalewright.goodput.simulate import LOST, Trials, simulate
from scalewright.plan.reliability import renewal_goodput, young_interval

RATE = 1.97e-5


def mean(trials: Trials) -> float:
    """Of all runs' time together."""
    return 1 - sum(trials.lost.values())


@pytest.mark.parametrize(
    ("devices", "save", "restart", "interval"),
    [
        (1024, 120.0, 1800.0, None),
        (16384, 30.0, 600.0, None),
        (16384, 120.0, 1800.0, 400.0),  # far from the best
        (100_000, 0.2, 60.0, None),
        (100_000, 30.0, 600.0, None),  # a stop every half an hour
    ],
)
def test_it_is_the_renewal_closed_form(devices: int, save: float, restart: float, interval: float | None) -> None:
    """Within 0.5%, which is what 200 runs of at most 3,000 events leave of chance, and ten times more."""
    asked = Asked(devices, save, restart, rate=RATE, interval_s=interval, days=400.0)
    setting = make_setting(asked, Run())
    closed = renewal_goodput(setting.interval_s, save, restart, setting.mtbf_s)
    found = simulate(setting)
    assert mean(found) == pytest.approx(closed, rel=5e-3)
    assert np.median(found.goodput) == pytest.approx(closed, rel=5e-3)
    assert found.stops.mean() == pytest.approx(found.wall_s.mean() / setting.mtbf_s, rel=0.01)


def test_young_s_interval_is_the_best_in_its_limit() -> None:
    """Saves much shorter than the time between stops: the simulated best of a grid lies around sqrt(2 d M)."""
    asked = Asked(4096, 5.0, 0.0, rate=RATE, days=1000.0)
    setting = make_setting(asked, Run())
    young = young_interval(5.0, setting.mtbf_s)
    assert setting.best_s == pytest.approx(young, rel=0.01)
    waste = {change: 1 - mean(simulate(replace(setting, interval_s=change * young), 400)) for change in (0.5, 1.0, 2.0)}
    first_order = 5.0 / young + young / (2 * setting.mtbf_s)
    assert waste[1.0] == pytest.approx(first_order, rel=0.01)
    assert waste[1.0] < min(waste[0.5], waste[2.0])
    assert waste[2.0] == pytest.approx(first_order * 1.25, rel=0.02)  # (2 + 1/2) / 2


def test_shares_add_up_and_seeds_repeat() -> None:
    setting = make_setting(Asked(4096), Run())
    one, again, other = simulate(setting, 50, 1), simulate(setting, 50, 1), simulate(setting, 50, 2)
    assert set(one.lost) == set(LOST)
    assert (one.goodput == again.goodput).all()
    assert not (one.goodput == other.goodput).all()
    pooled = (one.goodput * one.wall_s).sum() / one.wall_s.sum()
    assert pooled + sum(one.lost.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in one.lost.values())


def test_without_stops_only_saves_and_validation_take_time() -> None:
    setting = make_setting(
        Asked(64, save_s=10.0, restart_s=60.0, rate=0.0, interval_s=990.0, days=10.0), Run(evaluation=0.1)
    )
    found = simulate(setting, 3)
    work = 10 * 86400.0
    assert found.wall_s == pytest.approx(work * 1.1 + np.ceil(work / 990) * 10)
    assert found.lost["work"] == found.lost["restart"] == 0
    assert (found.stops == 0).all()


def test_lemons_keep_the_mean_rate_and_bring_bunches() -> None:
    plain = make_setting(Asked(1024, 10.0, 300.0, rate=RATE, days=60.0), Run())
    lemons = replace(plain, lemon_nodes=0.05, lemon_share=0.5)
    without, with_them = simulate(plain, 2000), simulate(lemons, 2000)
    assert with_them.stops.mean() == pytest.approx(without.stops.mean(), rel=0.05)  # 29 stops a run, 2,000 runs
    assert with_them.stops.var() > 1.3 * without.stops.var()
    assert without.stops.var() == pytest.approx(without.stops.mean(), rel=0.15)  # Poisson


def test_spares_save_the_wait_for_a_node() -> None:
    asked = Asked(1024, rate=RATE * 3, days=60.0)
    goodput = {count: mean(simulate(make_setting(replace(asked, spares=count), Run()), 100)) for count in (0, 1, 4, 50)}
    assert list(goodput.values()) == sorted(goodput.values())
    assert goodput[50] - goodput[0] > 0.2  # a stop in 16 hours, a day away at every second one
    never = simulate(make_setting(replace(asked, restart_s=611.0 + 16), Run()), 100)  # nobody is awaited
    assert mean(never) == pytest.approx(goodput[50], abs=0.01)


def test_planned_stops_lose_no_work() -> None:
    asked = Asked(16384, 2.0, 600.0, rate=0.0, interval_s=3600.0, days=100.0)
    planned = replace(make_setting(asked, Run()), planned_rate=2.21e-6, planned_s=600.0)
    found = simulate(planned, 50)
    assert found.lost["work"] == found.lost["restart"] == 0
    assert found.lost["other"] == pytest.approx(600 * 16384 * 2.21e-6 / 3600, rel=0.1)


def test_a_run_that_never_gets_there_is_said_to() -> None:
    found = simulate(make_setting(Asked(100_000, rate=0.1), Run()), 2)
    assert (found.goodput == 0).all()
    assert np.isinf(found.wall_s).all()


def test_100_000_devices_are_simulated_in_a_bounded_number_of_events() -> None:
    setting: Setting = make_setting(Asked(100_000, days=3650.0), Run())
    found = simulate(setting, 20)
    assert 0.02 < np.median(found.goodput) < 0.9
    assert np.median(found.stops) > 100_000  # extrapolated
