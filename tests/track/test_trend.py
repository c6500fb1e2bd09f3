"""The history behind the sparkline: bounded, and true to the values."""

from __future__ import annotations

import math

import pytest

from scalewright.track.trend import Trend, sparkline
from scalewright.track.words import count, decimal, duration, share, short_time


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
    [
        ([], 8, ""),
        ([1.0], 8, ""),
        ([2.0, 2.0], 8, "▁▁"),
        ([8.0, 1.0], 8, "█▁"),
        (list(range(64)), 8, "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


def test_words() -> None:
    assert [count(v) for v in (0, 7, 999.4, 12_345, 999_600, 3.2e9, None)] == [
        "0", "7", "999", "12.3k", "1M", "3.2B", "–",
    ]  # fmt: skip
    assert [duration(v) for v in (0, 42.4, 3723, 200_000, None, -1)] == [
        "0:00", "0:42", "1:02:03", "2 d 7 h", "–", "–",
    ]  # fmt: skip
    assert [short_time(v) for v in (8.5e-4, 0.0123, 0.9999, 4.2, None)] == [
        "850 µs",
        "12.3 ms",
        "1 s",
        "4.2 s",
        "–",
    ]
    assert [decimal(v, 3) for v in (0.0, 0.8421, 12.345, 3e-4, 2.5e7, None, math.nan)] == [
        "0.00", "0.84", "12.3", "3.00e-4", "2.50e7", "–", "nan",
    ]  # fmt: skip
    assert share(0.3412) == "34.1%"
