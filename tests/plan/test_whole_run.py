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


@pytest.mark.parametrize("price", [None, 2.5])
def test_totals_have_the_band_of_the_step(price: float | None) -> None:
    """What is asked for p90 of a step is p90 of the whole run's days, hours and cost."""
    from scalewright.api import predict

    given = {"tokens": 1e12, "price": price} if price else {"tokens": 1e12}
    answer = predict("llama-3.1-8b", "dgx-h100", {"devices": 64}, 8192, **given)
    total, step = answer["total"], answer["step_time_s"]
    assert set(total["band"]) == {"days", "device_hours"} | ({"cost"} if price else set())
    for key, band in total["band"].items():
        for name in ("p10", "p90"):
            assert band[name] / total[key] == pytest.approx(step[name] / step["p50"])
