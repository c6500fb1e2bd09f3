"""What the ranks held and sent, counted in real runs beside what a dry run of the same layout counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import events, run, run_data
from scalewright.dry_run.dry_run import dry_run
from scalewright.train.metrics.measured import GIB, sent

AXES = {"dp_shard": "dp", "dp_replicate": "dp", "kv": "tp", "tie": "pp"}
# A step's sums over all ranks (its tokens, its report), where their group is also an axis's.
SCALARS = 1024
LAYOUTS = [
    {"devices": 1},
    {"devices": 2, "zero_stage": 0},
    {"devices": 2, "zero_stage": 3, "precision": "bf16"},
    {"devices": 4, "zero_stage": 3, "dp_replicate": 2},
    {"devices": 4, "tp": 2, "pp": 2, "micro_batch": 2},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_counts_what_its_dry_run_counts(tmp_path: Path, layout: dict[str, Any]) -> None:
    data = run_data(tmp_path, layout=layout, train={"steps": 4, "valid_every": 2, "valid_batches": 1})
    dry = dry_run({**data, "out_dir": str(tmp_path / "dry")}).dump()
    result = run(data)
    (event,) = [event for event in events(result.out_dir) if event["kind"] == "measured"]
    expected: dict[str, int] = {}
    for group in dry["groups"]:
        by_axis: dict[str, int] = {}
        for call in group["collectives"]:
            if call["axis"] != "control":
                axis = AXES.get(call["axis"], call["axis"])
                by_axis[axis] = by_axis.get(axis, 0) + call["bytes"]
        expected |= {axis: max(size, expected.get(axis, 0)) for axis, size in by_axis.items()}
    assert set(event["comm_bytes"]) == set(expected)
    for axis, size in expected.items():
        assert size <= event["comm_bytes"][axis] <= size + SCALARS
    for kind in ("parameters", "gradients", "optimizer"):
        largest = max(group["memory_bytes"][kind] for group in dry["groups"])
        assert event["memory_gib"][kind] * GIB == pytest.approx(largest, rel=1e-3), kind  # steps' counters


def test_a_call_of_too_few_steps_counts_nothing(tmp_path: Path) -> None:
    result = run(run_data(tmp_path, train={"steps": 2}))
    assert not [event for event in events(result.out_dir) if event["kind"] == "measured"]


def test_a_recorder_that_lost_some_has_no_sum() -> None:
    assert sent(None, [{"time_created_ns": 5}], begun=4) is None  # type: ignore[arg-type]
