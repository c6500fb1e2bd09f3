"""The parts of a step add up to it; a mark that is off is nothing."""

from __future__ import annotations

import time

import pytest
import torch

from scalewright.parallel.timers import NOTHING, Spans, Timers


def test_communication_is_taken_out_of_the_phase_around_it() -> None:
    spans = [
        ("data", 0.0, 1.0),
        ("comm_control", 1.0, 1.5),  # between two phases
        ("comm_tp", 3.0, 4.0),
        ("comm_tp", 5.0, 7.0),
        ("compute", 2.0, 8.0),
        ("comm_control", 8.5, 9.0),
        ("optimizer", 8.0, 10.0),
    ]
    assert Spans(spans).breakdown(12.0) == {
        "data": 1.0, "compute": 3.0, "optimizer": 1.5, "comm_tp": 3.0, "comm_control": 1.0, "other": 2.5,
    }  # fmt: skip


def test_parts_never_exceed_the_step() -> None:
    """A device's clock beside the host's."""
    parts = Spans([("compute", 0.0, 3.0), ("optimizer", 3.0, 4.0)]).breakdown(2.0)
    assert parts == {"data": 0.0, "compute": 1.5, "optimizer": 0.5, "other": 0.0}


def test_marks_are_off_until_started() -> None:
    timers = Timers()
    assert timers.comm("tp") is NOTHING
    with timers.phase("compute"):
        pass
    assert list(timers.each("data", [1, 2])) == [1, 2]
    assert timers.take().breakdown(1.0) == {}


def test_a_wait_for_data_is_data_and_each_take_starts_anew() -> None:
    timers = Timers()
    timers.start(torch.device("cpu"))

    def slow() -> object:
        for number in range(2):
            time.sleep(0.05)
            yield number

    seen = []
    for number in timers.each("data", slow()):
        with timers.phase("compute"), timers.comm("fsdp"):
            seen.append(number)
        parts = timers.take().breakdown(10.0)
        assert parts["data"] >= 0.05
        assert parts["comm_dp_shard"] < parts["data"]
        assert sum(parts.values()) == pytest.approx(10.0)
    assert seen == [0, 1]
