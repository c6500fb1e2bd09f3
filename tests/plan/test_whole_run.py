"""Failures of a whole run: the default goodput is Llama 3's at its size, and falls with the devices."""

from __future__ import annotations

import pytest

from scalewright.plan.whole_run import usual_goodput


def test_the_usual_goodput_is_that_of_llama_3() -> None:
    """More than 90% of the time was effective on 16,384 H100."""
    assert usual_goodput(16384) == pytest.approx(0.9, abs=0.005)


def test_it_falls_with_the_devices_and_stays_above_0() -> None:
    shares = [usual_goodput(count) for count in (1, 8, 1024, 16384, 10**7)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9999
    assert shares[-1] > 0
