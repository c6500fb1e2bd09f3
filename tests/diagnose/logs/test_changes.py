"""Shifts, drift and rises: found where they are, and not found in clean series."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.diagnose.logs.changes import rises, shifts


def series(seed: int, length: int, memory: float, scatter: float) -> np.ndarray:
    """Clean times: heavy tails, a short memory, and every 25th three times as long."""
    chance = np.random.default_rng(seed)
    noise, x = chance.standard_t(3, length) / 1.7, np.zeros(length)
    for place in range(1, length):
        x[place] = memory * x[place - 1] + np.sqrt(1 - memory**2) * noise[place]
    times = np.exp(scatter * x)
    times[::25] *= 3
    return times


def test_clean_series_give_an_alarm_in_fewer_than_one_of_a_hundred() -> None:
    cases = [(length, memory, scatter) for length in (40, 120, 600) for memory in (0, 0.5) for scatter in (0.01, 0.05)]
    alarms = [bool(shifts(series(seed, *case))) for case in cases for seed in range(20)]
    assert sum(alarms) <= len(alarms) / 100


@pytest.mark.parametrize(("length", "place"), [(60, 40), (120, 80), (400, 300)])
@pytest.mark.parametrize("factor", [1.1, 1.22, 0.8])
def test_a_shift_is_found_where_it_is(length: int, place: int, factor: float) -> None:
    near = 0
    for seed in range(10):
        times = series(seed, length, 0.2, 0.01)
        times[place:] *= factor
        found = [change for change in shifts(times) if abs(change.share - (factor - 1)) < 0.03]
        near += any(abs(change.place - place) <= 3 for change in found)
    assert near >= 8


def test_two_shifts_and_a_drift() -> None:
    times = series(1, 300, 0.2, 0.01)
    times[100:200] *= 1.3
    up, down = (change.place for change in shifts(times))
    assert abs(up - 100) <= 1
    assert abs(down - 200) <= 1
    (drift,) = shifts(series(1, 300, 0.2, 0.01) * np.linspace(1, 1.3, 300))
    assert drift.drift
    assert drift.share == pytest.approx(0.3, abs=0.03)


def test_a_falling_loss_is_no_rise_and_a_jump_is_one() -> None:
    chance = np.random.default_rng(0)
    alarms = 0
    for length in (100, 500, 2000):
        for _ in range(20):
            at = np.arange(1, length + 1)
            alarms += bool(rises(2 + 8 * at**-0.5 + chance.normal(0, 0.05, length)))
    assert alarms == 0
    loss = 2 + 8 * np.arange(1, 601) ** -0.5 + chance.normal(0, 0.05, 600)
    loss[400:] += 0.6
    (change,) = rises(loss)
    assert abs(change.place - 400) < 6


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 15, [2.0] * 300])
def test_short_and_constant_series_have_none(values: list[float]) -> None:
    assert shifts(values) == rises(values) == []
