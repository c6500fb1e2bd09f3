"""A line through messages' times: recovered where it is known, and wide where the times say little."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.bench.message_fit import fit_line
from scalewright.spec.collectives import COLLECTIVES

SIZES = [2.0**power for power in range(10, 24)]


def times(start: float, rate: float, noise: float, repeats: int = 15) -> list[list[float]]:
    generator = np.random.default_rng(3)
    return [[(start + size / rate) * float(generator.lognormal(0, noise)) for _ in range(repeats)] for size in SIZES]


def test_a_known_line_comes_back() -> None:
    line = fit_line(SIZES, times(30e-6, 2e9, 0.0))
    assert line is not None
    assert line.start_s == pytest.approx(30e-6, rel=1e-6)
    assert line.bytes_per_s == pytest.approx(2e9, rel=1e-6)
    assert line.error < 1e-9


def test_the_interval_holds_the_truth_and_grows_with_the_noise() -> None:
    quiet, loud = (fit_line(SIZES, times(30e-6, 2e9, noise)) for noise in (0.05, 0.4))
    assert quiet is not None
    assert loud is not None
    assert quiet.start_interval_s[0] <= 30e-6 <= quiet.start_interval_s[1]
    low, high = quiet.interval_bytes_per_s
    assert low is not None
    assert high is not None
    assert low <= 2e9 <= high

    def width(line: object) -> float:
        return float(np.ptp(line.start_interval_s))  # type: ignore[attr-defined]

    assert width(loud) > 2 * width(quiet)


def test_a_term_is_never_below_zero() -> None:
    falling = fit_line([1e3, 1e4, 1e5], [[3e-3], [2e-3], [1e-3]])
    assert falling is not None
    assert falling.bytes_per_s is None
    assert falling.start_s > 0
    steep = fit_line([1e3, 1e4, 1e5], [[1e-6], [2e-5], [1e-3]])
    assert steep is not None
    assert steep.start_s == 0


def test_two_sizes_are_no_fit() -> None:
    assert fit_line([1.0, 2.0], [[1.0], [2.0]]) is None


def test_factors_are_those_of_nccl_tests() -> None:
    factors = {name: collective.factor(8) for name, collective in COLLECTIVES.items()}
    assert factors == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875,
        "broadcast": 1.0, "send_recv": 1.0,
    }  # fmt: skip
