"""Timings of this machine: curves that rise, two processes that meet, and what is kept between calls."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fake_machine import FLOPS, LINK, fake
from levels import level_for
from scalewright.machine import local
from scalewright.machine import timings as module
from scalewright.machine.kernels import curve, numpy_timings
from scalewright.machine.local import find_cluster, timed_cluster
from scalewright.machine.ranks import _streams
from scalewright.machine.timings import cpu_timings, probe
from scalewright.spec.errors import RunError
from scalewright.spec.hardware.timings import Timings

STEP = {
    "linear", "attention", "attention_narrow", "norm", "layer_norm", "gated", "activation", "rope",
    "residual", "embedding", "loss",
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

    def fake(*arguments: Any, patience: float) -> Timings:
        calls.append(arguments)
        return some()

    monkeypatch.setattr(module, "probe", fake)
    return calls


def test_noise_can_only_slow_a_kernel_so_a_curve_never_falls() -> None:
    found = curve("add", [(100, 5e-4), (10, 9e-4), (1000, 1e-3)])
    assert found["sizes"] == [10, 100, 1000]
    assert found["seconds"] == [5e-4, 5e-4, 1e-3]


@pytest.mark.slow
def test_two_processes_time_kernels_and_messages_together() -> None:
    found = probe(2, 1, seconds=0.001)
    curves = {(entry.what, entry.phase, entry.precision) for entry in found.curves}
    for what in STEP:
        assert (what, "forward", "fp32") in curves
        assert (what, "backward", "fp32") in curves
    assert {what for what, _, precision in curves if precision is None} >= MESSAGES | {"add", "optimizer"}
    assert (found.processes, found.threads) == (2, 1)
    for entry in found.curves:
        assert list(entry.seconds) == sorted(entry.seconds)
        assert entry.seconds[-1] < 10


@pytest.mark.slow
def test_one_process_sends_nothing() -> None:
    found = probe(1, 1, seconds=0.001)
    assert not MESSAGES & {entry.what for entry in found.curves}


def test_numpy_stands_in_for_torch_in_every_kernel_of_a_step() -> None:
    found = Timings.parse({"processes": 1, "threads": 1, "curves": list(numpy_timings(0.0005))})
    assert {entry.what for entry in found.curves} >= (STEP - {"attention_narrow"}) | {"add", "optimizer"}
    assert found.precisions == ("fp32",)


def test_a_stream_stands_in_for_messages() -> None:
    found = {entry["what"]: entry["seconds"] for entry in _streams()}
    assert found.keys() == MESSAGES
    assert found["all_gather"][-1] < found["all_reduce"][-1] < 60


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


def test_a_user_without_a_home_has_no_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user that /etc/passwd doesn't know, without HOME."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert module.known_timings() is None


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRECISIONS", ("nonsense",))
    with pytest.raises(RunError, match=r"process 0: .*nonsense"):
        probe(1, 1, seconds=0.001)


def test_rates_are_read_off_the_curves() -> None:
    cluster = timed_cluster(2, fake(2, narrow=2.0))
    assert cluster.device.peak("fp32") == pytest.approx(FLOPS, rel=0.01)
    assert cluster.device.peak("bf16") == pytest.approx(2 * FLOPS, rel=0.01)
    assert level_for(cluster, 2).bytes_per_s == pytest.approx(LINK, rel=0.01)
    assert (cluster.devices, cluster.peak_source) == (2, "measured")


def test_local_is_timed_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cpu_timings", fake)
    monkeypatch.setattr(local, "load_torch", lambda: None)
    measured = find_cluster("local", devices=2).measured
    assert measured is not None
    assert measured.timings == fake(2)
