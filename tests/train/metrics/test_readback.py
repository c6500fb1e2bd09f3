"""Numbers leave a GPU one step late; on a CPU at once. The GPU is played by a clock of events."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scalewright.train.metrics import readback
from scalewright.train.metrics.readback import Readback


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
    monkeypatch.setattr(readback, "torch", fake)
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
