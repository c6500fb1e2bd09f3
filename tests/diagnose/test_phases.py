"""Phases by what launched a kernel: a step written by hand, whose parts are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import EXAMPLE, write

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.phases import phases
from scalewright.diagnose.ranks import read_ranks

MAIN, ENGINE, COMPUTE, SENDS = 1, 2, 7, 20


def event(category: str, name: str, start: float, length: float, lane: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 9, "tid": lane,
            "ts": start, "dur": length, "args": args}  # fmt: skip


def launched(number: int, host: float, lane: int, start: float, end: float, stream: int) -> list[dict[str, Any]]:
    name = "ncclDevKernel_AllReduce" if stream == SENDS else "gemm"
    return [
        event("cuda_runtime", "cudaLaunchKernel", host, 2, lane, correlation=number),
        event("kernel", name, start, end - start, stream, stream=stream, correlation=number),
    ]


def step() -> list[dict[str, Any]]:
    """Forward 100..200, backward 210..400, its collective to 450, optimizer 440..500; then no step's."""
    return [
        event("user_annotation", "ProfilerStep#3", 0, 95, MAIN),
        *launched(1, 10, MAIN, 100, 200, COMPUTE),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 40, ENGINE),
        *launched(2, 25, ENGINE, 210, 400, COMPUTE),
        *launched(3, 35, ENGINE, 300, 450, SENDS),
        event("user_annotation", "Optimizer.step#AdamW.step", 70, 20, MAIN),
        *launched(4, 75, MAIN, 440, 500, COMPUTE),
        *launched(5, 98, MAIN, 500, 520, COMPUTE),
    ]


def read(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "rank0.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_kernels_phase_is_that_of_its_launch(tmp_path: Path) -> None:
    [rank] = read_ranks([read(tmp_path, step())]).ranks
    assert phases(rank) == {
        "forward": 100_000, "backward": 240_000, "optimizer": 50_000, "other": 20_000, "idle": 10_000,
    }  # fmt: skip


def test_the_parts_add_up_to_the_window(tmp_path: Path) -> None:
    answer = diagnose([read(tmp_path, step())])
    assert sum(answer["phases_pct"].values()) == pytest.approx(100)
    assert answer["per_rank"][0]["phases_pct"] == answer["phases_pct"]
    assert answer["phases_pct"]["idle"] == pytest.approx(answer["breakdown_pct"]["idle"])


def test_a_trace_without_names_has_none(tmp_path: Path) -> None:
    write(EXAMPLE, tmp_path)
    assert diagnose([tmp_path])["phases_pct"] is None


def test_operators_of_a_cpu_are_told_by_our_ranges(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100, MAIN),
        event("cpu_op", "aten::mm", 5, 20, MAIN),
        event("user_annotation", "backward stage 0 micro-batch 0", 30, 40, MAIN),
        event("cpu_op", "aten::mm", 32, 30, MAIN),
        event("user_annotation", "optimizer phase", 75, 20, MAIN),
        event("cpu_op", "aten::add_", 76, 10, MAIN),
    ]
    [rank] = read_ranks([read(tmp_path, events)]).ranks
    parts = phases(rank)
    assert parts is not None
    assert (parts["forward"], parts["backward"], parts["optimizer"]) == (20_000, 30_000, 10_000)
