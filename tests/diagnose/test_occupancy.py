"""Blocks on a multiprocessor and waves of a grid, by hand after NVIDIA's guide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.kernels import occupancy
from scalewright.diagnose.traces.trace import Launched

A100 = {
    "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108,
    "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936,
}  # fmt: skip


@pytest.mark.parametrize(
    ("launched", "blocks", "limit", "percent"),
    [
        (Launched((1024, 1, 1), (256, 1, 1), 32, 0), 8, "threads and registers", 100),
        (Launched((1024, 1, 1), (32, 1, 1), 16, 0), 32, "blocks", 50),
        (Launched((1024, 1, 1), (256, 1, 1), 128, 0), 2, "registers", 25),  # 65536 / (128 x 256)
        (Launched((1024, 1, 1), (128, 1, 1), 33, 0), 12, "registers", 75),  # 1,280 a warp, not 1,056
        (Launched((1024, 1, 1), (32, 1, 1), 96, 0), 20, "registers", 31.25),  # 5 warps a quarter
        (Launched((1024, 1, 1), (128, 1, 1), 32, 80 * 1024), 2, "shared memory", 12.5),  # 81 KiB of 164
        (Launched((1024, 1, 1), (100, 1, 1), 24, 0), 16, "threads", 100),  # a block's last warp is whole, too
    ],
)
def test_what_limits_the_blocks(launched: Launched, blocks: int, limit: str, percent: float) -> None:
    answer = occupancy(launched, A100)
    assert answer is not None
    assert (answer.blocks, answer.limited_by, 100 * answer.occupancy) == (blocks, limit, percent)


@pytest.mark.parametrize(("grid", "waves", "filled"), [(864, 1.0, 1.0), (865, 1.001, 0.5006), (54, 0.0625, 0.0625)])
def test_waves_and_the_last_one(grid: int, waves: float, filled: float) -> None:
    answer = occupancy(Launched((grid, 1, 1), (256, 1, 1), 32, 0), A100)
    assert answer is not None
    assert answer.waves == pytest.approx(waves, abs=1e-3)
    assert answer.filled == pytest.approx(filled, abs=1e-3)


@pytest.mark.parametrize(
    "launched", [Launched((0, 1, 1), (256, 1, 1)), Launched((8, 1, 1), ()), Launched((8, 1, 1), (4096, 1, 1))]
)
def test_what_cannot_run_has_none(launched: Launched) -> None:
    if launched.block == ():
        assert occupancy(launched, A100 | {"computeMajor": 6}) is None
    else:
        assert occupancy(launched, A100) is None


def kernel(number: int, **args: Any) -> dict[str, Any]:
    about = {"correlation": number, "stream": 7, "device": 0, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 10.0 * number,
        "dur": 5,
        "args": about,
    }


def read(folder: Path, *events: dict[str, Any], device: dict[str, Any] = A100) -> Any:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    return diagnose([path])["occupancy"]


LAUNCH = {"grid": [1024, 1, 1], "block": [256, 1, 1], "registers per thread": 128, "shared memory": 0}


def test_launches_alike_are_one_row(tmp_path: Path) -> None:
    other = LAUNCH | {"grid": [16, 1, 1]}
    rows = read(tmp_path, kernel(0, **LAUNCH), kernel(1, **LAUNCH), kernel(2, **other))
    assert [(row["calls"], row["grid"], row["limited_by"]) for row in rows] == [
        (2, 1024, "registers"),
        (1, 16, "registers"),
    ]
    assert rows[0]["share_pct"] == pytest.approx(200 / 3)


def test_damaged_launches_and_unknown_devices_have_none(tmp_path: Path) -> None:
    assert read(tmp_path, kernel(0, **LAUNCH), device={"name": "AMD Instinct MI300X"}) == []
    strange = (LAUNCH | {"grid": "x"}, LAUNCH | {"block": None}, LAUNCH | {"block": [1.5]}, {"block": [64, 1, 1]})
    rows = read(tmp_path, *(kernel(number, **args) for number, args in enumerate(strange)), kernel(9, **LAUNCH))
    assert [row["calls"] for row in rows] == [1]
