"""The history behind the sparkline: bounded, and true to the values."""

from __future__ import annotations

import math

import pytest

from scalewright.track.progress import Trend, sparkline


def test_a_long_history_stays_small_and_keeps_its_shape() -> None:
    trend = Trend(points=32)
    for step in range(100_000):
        trend.add(float(step))
    values = trend.values()
    assert 32 <= len(values) <= 65
    assert values == sorted(values)
    assert values[0] < 100_000 / 32
    assert values[-1] > 100_000 * (1 - 2 / 32)
    assert trend.change() == pytest.approx(25_000, rel=0.1)  # a quarter of the way, to a point's width


def test_missing_and_nonfinite_values_are_left_out() -> None:
    trend = Trend()
    for value in (1.0, None, math.nan, math.inf, 3.0):
        trend.add(value)
    assert trend.values() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [([], 8, ""), ([1.0], 8, ""), ([2.0, 2.0], 8, "▁▁"), ([8.0, 1.0], 8, "█▁"), (list(range(64)), 8, "▁▂▃▄▅▆▇█")],
)
def test_sparkline(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected
