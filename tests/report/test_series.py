"""Smoothing, thinning and framing keep what a reader would miss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalewright.report.chart import Chart, Series, draw, path
from scalewright.report.series import frame, rolling_median, say, say_tick, smooth, thin, ticks, without_outliers

NAN = math.nan


def test_smoothing_keeps_a_constant_follows_a_fall_and_leaves_gaps() -> None:
    assert smooth(np.array([3.0, 3.0, NAN, 3.0]), 10).tolist() == pytest.approx([3.0, 3.0, NAN, 3.0], nan_ok=True)
    noisy = 2.0 + np.random.default_rng(0).normal(0, 1, 4000)
    assert smooth(noisy, 100)[1000:].std() < 0.15  # an average over n has 1/sqrt(n) of the noise: 0.1 for 100
    fall = 10 * np.exp(-np.arange(400) / 20)
    assert np.abs(smooth(fall, 100) - fall).max() < 1.5  # a plain average of span 100 is off by more than 6


def test_a_rolling_median_is_blind_to_a_slow_step() -> None:
    values = np.full(100, 0.2)
    values[0], values[50], values[70] = 30.0, 9.0, NAN
    steps, medians = rolling_median(np.arange(100.0), values, 5)
    assert len(steps) == 100
    assert np.nanmax(medians) == pytest.approx(0.2)
    assert np.flatnonzero(np.isnan(medians)).tolist() == [70]
    steps, medians = rolling_median(np.arange(100_000.0), np.ones(100_000), 2501)
    assert (len(steps), steps[0], steps[-1], medians.max()) == (1000, 0.0, 99_999.0, 1.0)


def test_thinning_keeps_extremes_ends_order_and_gaps() -> None:
    generator = np.random.default_rng(1)
    steps, values = np.arange(1, 50_001.0), generator.normal(0, 1, 50_000)
    values[12_345], values[23_456] = 50.0, -50.0
    values[30_000:30_003] = NAN
    x, y = thin(steps, values, buckets=500)
    assert len(x) <= 1600
    assert x.tolist() == sorted(set(x.tolist()))
    assert (x[0], x[-1]) == (1.0, 50_000.0)
    assert (x[np.nanargmax(y)], x[np.nanargmin(y)]) == (12_346.0, 23_457.0)
    assert np.isnan(y).sum() == 1
    picked = values[(x - 1).astype(int)]
    assert np.array_equal(picked, y, equal_nan=True)  # every point is a real one
    assert thin(steps[:900], values[:900])[0] is not None
    assert len(thin(steps[:900], values[:900])[0]) == 900


def test_the_frame_leaves_out_lone_outliers_only() -> None:
    values = np.concatenate([[100.0], np.linspace(1.0, 2.0, 200)])
    low, high = frame([], False, values)
    assert 0.8 < low < 1.0
    assert 2.0 < high < 2.2
    assert frame([np.array([150.0])], False, values)[1] > 150
    assert frame([], True, values)[0] == 0.0
    assert frame([], False)[0] < frame([], False)[1]
    flat_low, flat_high = frame([np.full(50, 7.0)], False)
    assert flat_low < 7.0 < flat_high
    assert without_outliers(np.array([1.0, 1.0, 99.0])).tolist() == [1.0, 1.0, 99.0]  # few: all are shown
    assert without_outliers(np.array([5.0] * 300 + [9.0])).tolist() == [5.0] * 300


@pytest.mark.parametrize(
    ("low", "high"), [(0, 9.3), (1.49, 1.53), (0, 1e-4), (-3, 3), (1, 100_000), (0, 989e12), (2.0001, 2.0002)]
)
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 8
    assert all(low <= value <= high * (1 + 1e-9) for value in found)
    assert len({say_tick(value, "number") for value in found}) == len(found)
    assert ticks(3.0, 3.0) == [3.0]
    assert ticks(0.0, math.inf) == []


def test_values_are_said_with_their_units() -> None:
    assert [say(0.2213, "seconds"), say(0.3412, "percent"), say(12_345, "count")] == ["221 ms", "34.1%", "12.3k"]
    assert [say(0.62, "gib"), say(1200, "step"), say(2.34567, "number")] == ["0.62 GiB", "1,200", "2.346"]
    assert [say_tick(v, "number") for v in (0, 0.003, 2.5, 2e5, 1e-4)] == ["0", "0.003", "2.5", "2e5", "1e-4"]
    assert [say_tick(0.2, "percent"), say_tick(0.4, "gib"), say_tick(0, "seconds")] == ["20%", "0.4", "0"]


def test_a_path_lifts_its_pen_over_gaps() -> None:
    assert path([0, 0.5, 1], [0, NAN, 1]) == "M0 0h0M1000 1000h0"
    assert path([0, 0.25, 0.5, 0.75], [1, 0.5, NAN, 0]) == "M0 1000L250 500M750 0h0"
    assert path([0, 1], [0, 1], dots=True) == "M0 0h0M1000 1000h0"
    assert path([0], [NAN]) == ""


def test_a_chart_says_in_words_what_it_draws() -> None:
    line = Series("training", "line", np.array([1.0, 2.0, 3.0]), np.array([4.0, 1.0, 2.0]))
    drawing = draw(Chart("loss", "Loss", "number", (line,), (1.0, 3.0)))
    assert drawing.description == ("Loss over steps 1 to 3: training from 4.000 to 2.000, lowest 1.000, highest 4.000.")
    assert [tick.text for tick in drawing.x_ticks] == ["1", "2", "3"]
    assert all(0 <= tick.at <= 1 for tick in [*drawing.x_ticks, *drawing.y_ticks])
