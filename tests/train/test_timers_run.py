"""Where each step's time went, in real runs: the parts add up, and every axis that communicates is there."""

from __future__ import annotations

from typing import Any

import pytest

from runs import rows, run, run_data

AXES = [
    ({"devices": 1}, set()),
    pytest.param({"devices": 2, "zero_stage": 0}, {"dp_shard"}, marks=pytest.mark.slow),
    pytest.param(
        {"devices": 4, "zero_stage": 3, "dp_replicate": 2}, {"dp_shard", "dp_replicate"}, marks=pytest.mark.slow
    ),
    ({"devices": 4, "tp": 2, "pp": 2, "micro_batch": 2}, {"tp", "pp"}),
]


@pytest.mark.parametrize(("layout", "axes"), AXES)
def test_breakdown(tmp_path: Any, layout: dict[str, Any], axes: set[str]) -> None:
    result = run(run_data(tmp_path, layout=layout, train={"steps": 4, "valid_every": 2, "valid_batches": 1}))
    found = rows(result.out_dir)
    assert len(found) == 4
    for row in found:
        parts = row["breakdown_s"]
        control = {"control"} if layout["devices"] > 1 else set()
        assert set(parts) == {"data", "compute", "optimizer", "other"} | {f"comm_{a}" for a in axes | control}
        assert sum(parts.values()) == pytest.approx(row["step_time_s"], abs=1e-5)  # rounded to 0.1 µs each
        assert min(parts.values()) >= 0
        assert parts["compute"] > 0
        assert parts["optimizer"] > 0
        assert all(parts[f"comm_{axis}"] > 0 for axis in axes)
