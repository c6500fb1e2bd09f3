"""The memory's band holds what is known of it: measured peaks."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.memory import risk
from scalewright.plan.fitting.runs import MEASURED, read_table, runs_of
from scalewright.plan.frameworks import find_framework
from scalewright.plan.predict import predict_table
from scalewright.plan.terms import RISK_TERMS


def test_risk_follows_from_the_band() -> None:
    assert [risk(usable, 50, 60, 70) for usable in (71, 65, 55, 49)] == list(RISK_TERMS)
    table = predict_table([runs_of(read_table(MEASURED)[::60]).requests[0]])
    held = table.outcome.memory
    assert bool(held.low[0] < held.peak[0] < held.high[0])


def test_spreads_are_those_of_the_measured_peaks() -> None:
    runs = runs_of(read_table(MEASURED))
    held = predict_table(runs.requests).outcome.memory
    error = np.log(runs.memory * 2**30 / held.peak)
    for name in ("nanotron", "megatron", "megatron-deepspeed", "internevo"):
        of_it = np.array([request.framework.name == name for request in runs.requests])
        at = np.isfinite(error) & ~runs.apart & of_it
        spread = float(np.sqrt(np.mean(error[at] ** 2)))
        assert find_framework(name).memory_spread == pytest.approx(spread, abs=0.01), name
        within = (error[at] > -1.2816 * spread) & (error[at] < 1.2816 * spread)
        assert within.mean() > 0.7
    assert find_framework("torchtitan").memory_spread > 0.13, "never measured: wider than most that were"
