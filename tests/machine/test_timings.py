"""Timings of this machine: curves that rise, two processes that meet, and what is kept between calls."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from scalewright.machine import timings as module
from scalewright.machine.kernels import curve, numpy_timings
from scalewright.machine.local import local_cluster, with_timings
from scalewright.machine.timings import cpu_timings, probe
from scalewright.spec.errors import RunError
from scalewright.spec.timings import Timings

STEP = {
    "linear", "attention", "norm", "layer_norm", "gated", "activation", "rope", "residual", "embedding",
    "loss",
}  # fmt: skip
MESSAGES = {"all_reduce", "all_gather", "reduce_scatter", "send"}


def some(load: float | None = 0.1) -> Timings:
    """Timings of one curve."""
    add = {"what": "add", "sizes": [1.0, 10.0], "seconds": [1e-6, 1e-5]}
    return Timings.parse({"processes": 1, "threads": 1, "curves": [add], "load": load})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fake probes, counted."""
    calls: list[Any] = []

    def fake(*arguments: Any) -> Timings:
        calls.append(arguments)
        return some()

    monkeypatch.setattr(module, "probe", fake)
    return calls


def test_noise_can_only_slow_a_kernel_so_a_curve_never_falls() -> None:
    found = curve("add", [(100, 5e-4), (10, 9e-4), (1000, 1e-3)])
    assert found["sizes"] == [10, 100, 1000]
    assert found["seconds"] == [5e-4, 5e-4, 1e-3]


def test_two_processes_time_kernels_and_messages_together() -> None:
    found = probe(2, 1, seconds=0.001)
    curves = {(one.what, one.phase, one.precision) for one in found.curves}
    for what in STEP:
        assert (what, "forward", "fp32") in curves
        assert (what, "backward", "fp32") in curves
    assert {what for what, _, precision in curves if precision is None} >= MESSAGES | {"add", "optimizer"}
    assert (found.processes, found.threads) == (2, 1)
    for one in found.curves:
        assert list(one.seconds) == sorted(one.seconds)
        assert one.seconds[-1] < 10


def test_one_process_sends_nothing() -> None:
    found = probe(1, 1, seconds=0.001)
    assert not MESSAGES & {one.what for one in found.curves}


def test_numpy_stands_in_for_torch_in_every_kernel_of_a_step() -> None:
    found = Timings.parse({"processes": 1, "threads": 1, "curves": list(numpy_timings(0.0005))})
    assert {one.what for one in found.curves} >= STEP | {"add", "optimizer"}
    assert found.precisions == ("fp32",)


def test_what_was_probed_is_kept(tmp_path: Path, counted: list[Any]) -> None:
    assert cpu_timings(1, folder=tmp_path) == cpu_timings(1, folder=tmp_path)
    assert len(counted) == 1
    cpu_timings(2, folder=tmp_path)  # other processes share the machine in another way
    cpu_timings(1, folder=tmp_path, fresh=True)
    assert len(counted) == 3


def test_a_probe_of_a_busy_machine_is_soon_forgotten(tmp_path: Path, counted: list[Any]) -> None:
    cpu_timings(1, folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    past = time.time() - 3600
    os.utime(kept, (past, past))
    cpu_timings(1, folder=tmp_path)
    assert len(counted) == 1  # an hour is nothing to a quiet machine's
    kept.write_text(json.dumps(some(load=50.0).dump()))
    os.utime(kept, (past, past))
    cpu_timings(1, folder=tmp_path)
    assert len(counted) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"processes": 0}'])
def test_a_damaged_file_is_probed_again(tmp_path: Path, counted: list[Any], text: str) -> None:
    cpu_timings(1, folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(text)
    assert cpu_timings(1, folder=tmp_path) == some()
    assert len(counted) == 2


def test_a_home_that_cannot_be_written_to_is_no_reason_to_fail(tmp_path: Path, counted: list[Any]) -> None:
    (tmp_path / "file").write_text("")
    assert cpu_timings(1, folder=tmp_path / "file" / "below") == some()


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRECISIONS", ("nonsense",))
    with pytest.raises(RunError, match=r"process 0: .*nonsense"):
        probe(1, 1, seconds=0.001)


def test_only_a_cpu_is_priced_by_curves() -> None:
    cpu = local_cluster(1, device="cpu", seconds=0.01)
    found = with_timings(cpu, 1, some()).measured
    assert found is not None
    assert found.timings == some()
    gpu = cpu.model_copy(update={"device": cpu.device.model_copy(update={"kind": "gpu"})})
    assert with_timings(gpu, 1) is gpu
