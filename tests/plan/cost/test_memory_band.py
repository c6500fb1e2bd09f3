"""The memory's band holds what is known of it: measured peaks, and dry runs of this package's trainer."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.memory_band import RISKS, risk
from scalewright.plan.frameworks import find_framework
from scalewright.plan.measured.runs import MEASURED, read_table, runs_of
from scalewright.plan.predict import predict, predict_table
from scalewright.spec.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

H100 = load_cluster("dgx-h100")
# GiB that `train --dry-run` counted in bf16 without document masks (and, last, with them), 2026-11-22. 8,192
# tokens a sequence, but 4,096 for the tensor-parallel 8B.
COUNTED = [
    ("llama-3.1-8b", {"devices": 64, "zero_stage": 2, "global_batch": 512}, 83.9),
    ("llama-3.1-8b", {"devices": 64, "zero_stage": 3, "dp_replicate": 8, "global_batch": 512}, 84.0),
    ("llama-3.2-1b", {"devices": 8, "zero_stage": 3, "global_batch": 64}, 28.0),
    ("llama-3.1-8b", {"devices": 8, "zero_stage": 3, "recompute": "full", "global_batch": 64}, 32.9),
    ("llama-3.1-70b", {"devices": 64, "tp": 8, "pp": 4, "zero_stage": 1, "global_batch": 512}, 58.7),
    ("llama-3.1-8b", {"devices": 8, "tp": 2, "zero_stage": 1, "global_batch": 64}, 48.5),
    ("llama-3.1-8b", {"devices": 64, "zero_stage": 2, "global_batch": 512}, 87.9),
]


@pytest.mark.parametrize(("model", "keys", "counted"), COUNTED)
def test_our_own_dry_runs_are_in_the_band(model: str, keys: dict[str, object], counted: float) -> None:
    length = 4096 if counted == 48.5 else 8192
    found = predict(load_model_spec(model), H100, Layout.parse({"precision": "bf16", **keys}), length).dump()
    low, high = found["memory_p10_p90_gib"]
    assert low < counted < high
    if counted > 80:
        assert found["risk"] in ("unlikely", "no")
        assert not found["fits"]


def test_risk_follows_from_the_band() -> None:
    assert [risk(usable, 50, 60, 70) for usable in (71, 65, 55, 49)] == list(RISKS)
    table = predict_table([runs_of(read_table(MEASURED)[::60]).requests[0]])
    held = table.outcome.memory
    assert held is not None
    assert bool(held.low[0] < held.peak[0] <= held.middle[0] < held.high[0])


def test_spreads_are_those_of_the_measured_peaks() -> None:
    runs = runs_of(read_table(MEASURED))
    held = predict_table(runs.requests).outcome.memory
    assert held is not None
    error = np.log(runs.memory * 2**30 / held.peak)
    for name in ("nanotron", "megatron", "megatron-deepspeed", "internevo"):
        of_it = np.array([request.framework.name == name for request in runs.requests])
        at = np.isfinite(error) & ~runs.apart & of_it
        spread = float(np.sqrt(np.mean(error[at] ** 2)))
        assert find_framework(name).memory_spread == pytest.approx(spread, abs=0.01), name
        within = (error[at] > -1.2816 * spread) & (error[at] < 1.2816 * spread)
        assert within.mean() > 0.7
    assert find_framework("torchtitan").memory_spread > 0.13, "never measured: wider than most that were"
