"""Kineto's JSON as columns: times to the nanosecond, launches, forms of old and new recorders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.traces.kineto import read_kineto
from scalewright.diagnose.traces.trace import CALL, KERNEL, MEMCPY, Trace


def event(category: str, name: str, ts: Any, dur: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": args}


def read(folder: Path, text: str, name: str = "trace.json") -> Trace:
    path = folder / name
    path.write_text(text)
    return read_kineto(path)


@pytest.mark.parametrize(
    ("ts", "dur", "start", "length"),
    [
        ("1661938466265032", "25", 1661938466265032_000, 25_000),  # PyTorch 1.8 to 2.1: whole microseconds
        ("5956372518.123", "4.928", 5956372518_123, 4_928),  # since 2024, after baseTimeNanoseconds
        ("1712195495505582.988", "0.007", 1712195495505582_988, 7),  # more digits than a float64 has
        ("1e3", "2.5e-1", 1_000_000, 250),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, ts: str, dur: str, start: int, length: int) -> None:
    text = json.dumps({"traceEvents": [event("kernel", "k", "TS", "DUR", stream=7)]})
    trace = read(tmp_path, text.replace('"TS"', ts).replace('"DUR"', dur))
    assert (int(trace.start[0]), int(trace.end[0] - trace.start[0])) == (start, length)


def test_the_base_time_is_added_so_that_ranks_can_be_compared(tmp_path: Path) -> None:
    document = {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": [event("kernel", "k", 1.5, 1)]}
    assert int(read(tmp_path, json.dumps(document)).start[0]) == 1_700_000_000_000_001_500


def test_a_kernel_finds_its_launch_and_old_categories_count_too(tmp_path: Path) -> None:
    events = [
        event("Runtime", "cudaLaunchKernel", 0, 5, correlation=3),
        event("Kernel", "gemm", 9, 5, correlation=3, stream=7, device=0),
        event("Memcpy", "Memcpy HtoD", 20, 5, correlation=4, stream=7, bytes=1024),
        event("python_function", "train.py(3): step", 0, 50),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": 0, "cat": "ac2g", "name": "ac2g"},
    ]
    trace = read(tmp_path, json.dumps(events))
    assert trace.category.tolist() == [CALL, KERNEL, MEMCPY]
    assert trace.launches.tolist() == [-1, 0, -1]
    assert trace.lanes[trace.lane[1]] == ("0", "7")
    assert trace.about["python_frames"] == 1


def test_events_of_another_form_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [event("kernel", "k", 1, 2), event("kernel", "k", "soon", 2), event("kernel", "k", 3, None)]
    trace = read(tmp_path, json.dumps({"traceEvents": events}))
    assert trace.start.tolist() == [1000, 3000]
    assert trace.warnings == ["1 events aren't of Kineto's form and were left out"]


@pytest.mark.parametrize(
    ("about", "name", "rank"),
    [
        ({"distributedInfo": {"rank": 5}}, "rank3.json", 5),
        ({}, "rank3.json", 3),
        ({}, "megatron_kineto_12.json", 12),
        ({}, "worker-7.1690000000.pt.trace.json", 7),
        ({}, "trace.json", None),
    ],
)
def test_the_rank_comes_from_the_recorder_or_the_name(
    tmp_path: Path, about: dict[str, Any], name: str, rank: int | None
) -> None:
    trace = read(tmp_path, json.dumps({**about, "traceEvents": [event("kernel", "k", 1, 2)]}), name)
    assert trace.rank == rank


def test_metadata_of_a_collective_is_kept(tmp_path: Path) -> None:
    args = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "BFloat16", "Group size": 2,
            "Process Group Name": "0", "Process Group Description": "mesh_tp",
            "Process Group Ranks": "[0, 1]"}  # fmt: skip
    trace = read(tmp_path, json.dumps([event("kernel", "ncclDevKernel_AllReduce", 1, 2, **args)]))
    known = trace.collectives[0]
    assert (known.name, known.elements_in, known.group_about, known.ranks) == ("allreduce", 8, "mesh_tp", "[0, 1]")
