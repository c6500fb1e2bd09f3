"""Memory that a profiler's trace follows: a step with known allocations."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose

MIB = 1 << 20


def operator(name: str, start: float, length: float, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": start, "dur": length, "args": {}}


def memory(ts: float, size: int, total: int, address: int, **more: Any) -> dict[str, Any]:
    args = {"Bytes": size, "Total Allocated": total, "Total Reserved": 2048 * MIB, "Addr": address,
            "Device Id": 0, "Device Type": 1}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": ts,
            "args": {**args, **more}}  # fmt: skip


def step() -> list[dict[str, Any]]:
    """512 MiB from before; linear keeps 64 of 96, the backward adds 128, the optimizer 32 for 64."""
    return [
        operator("aten::linear", 10, 10), operator("aten::empty", 11, 1),
        memory(11.5, 64 * MIB, 576 * MIB, 100), memory(12, 32 * MIB, 608 * MIB, 101),
        memory(19, -32 * MIB, 576 * MIB, 101),
        operator("autograd::engine::evaluate_function: MmBackward0", 30, 10),
        memory(35, 128 * MIB, 704 * MIB, 102), memory(36, 8, 8, 7, **{"Device Type": 0, "Device Id": -1}),
        operator("Optimizer.step#AdamW.step", 50, 10, "user_annotation"), operator("aten::add", 52, 2),
        memory(51, -64 * MIB, 640 * MIB, 100), memory(53, 32 * MIB, 672 * MIB, 103),
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 30,
         "args": {"stream": 7, "device": 0}},
    ]  # fmt: skip


def answer(folder: Path, events: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return diagnose([path])


@pytest.mark.parametrize("more", [{}, {"baseTimeNanoseconds": 1_700_000_000_000_000_000}])
def test_the_peak_with_its_owners(tmp_path: Path, more: dict[str, Any]) -> None:
    result = answer(tmp_path, step(), **more)["memory"]
    assert (result["peak_bytes"], result["since_the_recording"]) == (704 * MIB, False)
    assert result["peak_at_s"] == pytest.approx(25e-6)
    assert result["reserved_bytes"] == 2048 * MIB
    assert result["top_stacks"] == [
        {"owner": "(before the recording)", "bytes": 512 * MIB},
        {"owner": "autograd::engine::evaluate_function: MmBackward0", "bytes": 128 * MIB},
        {"owner": "aten::linear", "bytes": 64 * MIB},
    ]
    assert result["by_phase"] == {"before": 512 * MIB, "forward": 64 * MIB, "backward": 128 * MIB, "optimizer": 0}
    assert result["curve"]["allocated_bytes"] == [size * MIB for size in (576, 608, 576, 704, 640, 672)]


def test_without_totals_the_curve_is_relative(tmp_path: Path) -> None:
    events = step()
    for event in events:
        for key in ("Total Allocated", "Total Reserved", "Addr"):
            event["args"].pop(key, None)
        if event["ph"] == "i":
            del event["cat"]
    result = answer(tmp_path, events)["memory"]
    assert (result["peak_bytes"], result["since_the_recording"]) == (192 * MIB, True)
    assert result["top_stacks"] == []


def test_a_trace_without_it_or_of_the_host_alone_has_none(tmp_path: Path) -> None:
    assert answer(tmp_path, [event for event in step() if event["ph"] != "i"])["memory"] is None
    host = [memory(11.5, 64, 64, 100, **{"Device Type": 0})]
    assert answer(tmp_path, [*step()[:1], *host, step()[-1]])["memory"] is None


@pytest.mark.parametrize("args", [{"Bytes": "x"}, {"Bytes": 1 << 70}, {"Addr": None}, {"Device Id": 1 << 80}, 3])
def test_strange_ones_are_left_out(tmp_path: Path, args: Any) -> None:
    odd = memory(12, 1, 1, 1)
    odd["args"] = args if isinstance(args, int) else {**odd["args"], **args}
    events = [event for event in step() if event["ph"] != "i"]
    assert answer(tmp_path, [*events, odd])["memory"] is None


def test_a_text_made_to_be_slow_is_not(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = json.dumps(step()[-1])
    path.write_text('{"traceEvents": [' + event + ', {"name": "a", "x": [' + '"[memory]",' * 200_000 + "1]}]}")
    begun = time.process_time()
    assert diagnose([path])["memory"] is None
    assert time.process_time() - begun < 5
