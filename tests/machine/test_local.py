"""`local`: published peaks for GPUs in the table, measured ones for everything else, and never a guess."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import scalewright
from levels import level_for
from scalewright.machine import local
from scalewright.machine.local import find_cluster
from scalewright.machine.probe import Rate
from scalewright.machine.ranks import loopback_rate
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec


def fake_torch(names: list[str], memory: float, mps: bool = False) -> Any:
    """A torch that sees these GPUs."""
    facts = [SimpleNamespace(name=name, total_memory=int(memory), multi_processor_count=10) for name in names]
    return SimpleNamespace(
        __version__="0",
        version=SimpleNamespace(hip=None, cuda="13"),
        cuda=SimpleNamespace(
            is_available=lambda: bool(names),
            device_count=lambda: len(names),
            get_device_name=lambda index: names[index],
            get_device_properties=lambda index: facts[index],
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        mps=SimpleNamespace(recommended_max_memory=lambda: int(memory)),
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts a fake torch and fixed rates in the place of measurements."""

    def rate(precision: str, device: str, seconds: float) -> Rate | None:
        threads = 4 if device == "cpu" else None
        return None if precision == "tf32" else Rate(f"matmul {precision}", 8e12, 7e12, 3, "a fake", threads)

    def use(torch: Any) -> None:
        monkeypatch.setattr(local, "load_torch", lambda: torch)
        monkeypatch.setattr(local, "matmul_rate", rate)
        monkeypatch.setattr(local, "copy_rate", lambda *_: Rate("copy", 4e11, 3e11, 3, "a fake"))
        monkeypatch.setattr(local, "_host_rate", lambda _: 2e10)

    return use


def test_a_known_gpu_has_published_peaks_and_its_own_memory(measured: Callable[[Any], None]) -> None:
    measured(fake_torch(["NVIDIA H100 80GB HBM3"] * 4, 79.1 * 2**30))
    cluster = find_cluster("local")
    assert (cluster.name, cluster.devices, cluster.peak_source) == ("local", 4, "published")
    assert cluster.device.peak("bf16") == 989.4e12
    assert cluster.device.capacity_bytes == int(79.1 * 2**30)
    assert level_for(cluster, 4).kind == "nvlink"
    with pytest.raises(UserError, match="more nodes"):
        cluster.check_devices(5)


def test_an_unknown_gpu_is_measured(measured: Callable[[Any], None]) -> None:
    measured(fake_torch(["NVIDIA GeForce RTX 3090 Ti"] * 2, 24e9))
    cluster = find_cluster("local")
    assert cluster.peak_source == "measured"
    assert cluster.device.peak("bf16") == 8e12
    assert cluster.device.peak("tf32") is None
    assert cluster.device.peak("fp8") is None
    assert level_for(cluster, 2).bytes_per_s == 2e10
    assert all(source.startswith("measured") for source in cluster.device.sources)


def test_a_slice_of_a_gpu_is_measured(measured: Callable[[Any], None]) -> None:
    measured(fake_torch(["NVIDIA H100 80GB HBM3"], 19.6 * 2**30))
    assert find_cluster("local").peak_source == "measured"


def test_gpus_of_several_kinds_are_refused(measured: Callable[[Any], None]) -> None:
    measured(fake_torch(["Tesla T4", "NVIDIA L4"], 16e9))
    with pytest.raises(UserError, match="several kinds"):
        find_cluster("local")


def test_apple_gpu_is_measured(measured: Callable[[Any], None]) -> None:
    measured(fake_torch([], 12e9, mps=True))
    cluster = find_cluster("local")
    assert (cluster.device.kind, cluster.peak_source, cluster.devices) == ("mps", "measured", 1)


def test_find_cluster_takes_local_and_every_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def probe(devices: int) -> ClusterSpec:
        asked.append(devices)
        return find_cluster("t4")

    monkeypatch.setattr(local, "_local", probe)
    assert find_cluster("Local", devices=3).name == "t4"
    assert asked == [3]
    assert find_cluster("dgx-h100").name == "dgx-h100"
    with pytest.raises(UserError, match="did you mean"):
        find_cluster("locall")


def test_the_python_api_takes_local_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_local", lambda devices: find_cluster("t4"))
    assert scalewright.load_cluster("local").name == "t4"


def test_loopback_moves_bytes() -> None:
    assert loopback_rate(1 << 22) > 1e6  # a megabyte a second: the slowest sandbox
