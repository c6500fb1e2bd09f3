"""What is judged slow, wrong or below its spec, from figures as they would be measured."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.accept import hardware
from scalewright.accept.hardware import Axis
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout

H100 = load_cluster("dgx-h100")


def device(rank: int, flops: float = 700e12, copies: float = 2.8e12) -> dict[str, Any]:
    return {"rank": rank, "host": f"node-{rank // 8}", "flops_per_s": flops, "bytes_per_s": copies}


def axis(rate: float, group: int = 8, stride: int = 1, wrong: int = 0) -> dict[str, Any]:
    return {"axis": "tp", "group": group, "stride": stride, "bytes": 1 << 28, "time_s": 1e-3,
            "busbw_bytes_per_s": rate, "wrong": wrong}  # fmt: skip


def test_axes_are_those_of_the_layout() -> None:
    layout = Layout.parse({"devices": 16, "pp": 2, "tp": 4, "dp_replicate": 1, "global_batch": 16})
    job = hardware.job_of(layout, "cuda")
    assert job.axes == (Axis("tp", 4, 1), Axis("dp_shard", 2, 4), Axis("pp", 2, 8))
    assert job.precision == "bf16"


def test_devices_alike_pass_with_their_share_of_the_peak() -> None:
    check = hardware.devices([device(rank) for rank in range(8)], H100, "bf16")
    assert check.severity == "ok"
    assert "70.7% of the published peak" in check.what


@pytest.mark.parametrize("key", ["flops_per_s", "bytes_per_s"])
def test_a_slow_device_is_named(key: str) -> None:
    rows = [device(rank) for rank in range(16)]
    rows[11][key] *= 0.8
    check = hardware.devices(rows, H100, "bf16")
    assert check.severity == "problem"
    assert check.what.startswith("rank 11 on node-1: 80.0%")


def test_all_devices_slow_are_a_warning() -> None:
    check = hardware.devices([device(rank, flops=300e12) for rank in range(8)], H100, "bf16")
    assert check.severity == "warn"
    assert check.how


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (axis(400e9), "ok"),
        (axis(200e9), "problem"),  # NVLink at 450 GB/s
        (axis(45e9, group=2, stride=8), "ok"),  # InfiniBand at 50 GB/s
        (axis(3e9, group=2, stride=8), "problem"),  # sockets
        (axis(400e9, wrong=3), "problem"),
    ],
)
def test_links_are_compared_with_their_level(row: dict[str, Any], state: str) -> None:
    assert hardware.links([row], H100).severity == state


def test_wrong_numbers_name_their_hosts() -> None:
    rows = [
        {"ranks": [0, 1], "hosts": ["node-0", "node-7"], "bytes_per_s": 1e9, "wrong": 5},
        {"ranks": [2, 3], "hosts": ["node-1", "node-2"], "bytes_per_s": 1e9, "wrong": 0},
    ]
    check = hardware.meetings(rows)
    assert check.severity == "problem"
    assert "node-0, node-7" in check.what
