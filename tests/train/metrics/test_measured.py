"""What the ranks held and sent, counted in real runs beside what a dry run of the same layout counts.

Numbers leave a GPU one step late; on a CPU at once. The GPU is played by a clock of events.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rank_states import unit_bytes

from runs import MODEL, events, run, run_data
from scalewright.dry_run.dry_run import dry_run
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.train.metrics import measured
from scalewright.train.metrics.measured import GIB, Readback, sent

AXES = {"dp_shard": "dp", "dp_replicate": "dp", "kv": "tp", "tie": "pp"}
# A step's sums over all ranks (its tokens, its report), where their group is also an axis's.
SCALARS = 1024
LAYOUTS = [
    {"devices": 1},
    {"devices": 2, "zero_stage": 0},
    pytest.param({"devices": 2, "zero_stage": 3, "precision": "bf16"}, marks=pytest.mark.slow),
    pytest.param({"devices": 4, "zero_stage": 3, "dp_replicate": 2}, marks=pytest.mark.slow),
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
        if kind == "gradients" and "dp_replicate" in layout:  # at its peak a block's earlier sum is there, too
            largest -= unit_bytes(ModelSpec.parse(MODEL), Layout.parse({**layout, "global_batch": 8}))
        assert event["memory_gib"][kind] * GIB == pytest.approx(largest, rel=1e-3), kind  # steps' counters


def test_a_call_of_too_few_steps_counts_nothing(tmp_path: Path) -> None:
    result = run(run_data(tmp_path, train={"steps": 2}))
    assert not [event for event in events(result.out_dir) if event["kind"] == "measured"]


def test_a_recorder_that_lost_some_has_no_sum() -> None:
    assert sent(None, [{"time_created_ns": 5}], begun=4) is None  # type: ignore[arg-type]


def test_a_cpu_is_read_at_once():
    reader = Readback(torch.device("cpu"))
    assert reader.push(1, torch.tensor([1.0, 2.0])) == [(1, [1.0, 2.0])]
    assert reader.flush() == []


@pytest.fixture
def log(monkeypatch):
    """What the host did to the device, in order."""
    happened: list[str] = []

    class Event:
        count = 0

        def record(self) -> None:
            Event.count += 1
            self.number = Event.count
            happened.append(f"record {self.number}")

        def synchronize(self) -> None:
            happened.append(f"wait {self.number}")

    def empty(shape, dtype, pin_memory):
        assert pin_memory
        return torch.zeros(shape, dtype=dtype)

    fake = SimpleNamespace(empty=empty, cuda=SimpleNamespace(Event=Event), Tensor=torch.Tensor)
    monkeypatch.setattr(measured, "torch", fake)
    return happened


def test_a_gpu_is_read_one_step_late(log):
    """The host waits for step 1 only when step 2 is on its way, and never for the step just launched."""
    reader = Readback(torch.device("cuda"))
    assert reader.push(1, torch.tensor([1.0])) == []
    assert reader.push(2, torch.tensor([2.0])) == [(1, [1.0])]
    assert log.index("wait 1") > log.index("record 1")
    assert "wait 2" not in log
    assert reader.push(3, torch.tensor([3.0])) == [(2, [2.0])]
    assert "wait 3" not in log
    assert reader.flush() == [(3, [3.0])]
    assert reader.flush() == []
    assert [entry for entry in log if entry.startswith("wait")] == ["wait 1", "wait 2", "wait 3"]


def test_a_report_is_copied_when_it_is_pushed(log):
    """The step may reuse its tensor."""
    reader = Readback(torch.device("cuda"))
    report = torch.tensor([1.0])
    reader.push(1, report)
    report.fill_(9.0)
    assert reader.flush() == [(1, [1.0])]
