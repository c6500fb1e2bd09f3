"""Damaged files of every kind end in an answer or in one line, through the door that users take."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnose.memory.job import Job as MemoryJob
from tests.diagnose.memory.test_traced import step
from tests.diagnose.ncu.test_ncu import details
from tests.diagnose.operations.job import Job as Pipeline
from tests.diagnose.operations.job import write as write_pipeline
from tests.diagnose.traces.test_nsys import export

from scalewright.diagnose.diagnose import EXAMPLE, diagnose
from scalewright.spec.errors import UserError

MARKS = (b"{", b"}", b"[", b"]", b'"', b",", b"\\", b"\x00", b"NaN", b"1e999", b'"ts": "x"', b"-1")


def damaged(data: bytes, source: random.Random) -> bytes:
    """Some bytes changed, lost, doubled or put in between; or the end cut off."""
    text = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 5, 40))):
        place = source.randrange(len(text) + 1)
        match source.randrange(5):
            case 0:
                text[place : place + 1] = bytes([source.randrange(256)])
            case 1:
                del text[place : place + source.randrange(200)]
            case 2:
                text[place:place] = source.choice(MARKS)
            case 3:
                text[place:place] = text[place : place + source.randrange(500)]
            case _:
                text[place : place + 8] = source.randbytes(8)
    return bytes(text[: source.randrange(len(text) + 1)]) if source.random() < 0.2 else bytes(text)


def trace(folder: Path) -> bytes:
    return gzip.decompress((EXAMPLE / "rank0.pt.trace.json.gz").read_bytes())


def zipped_trace(folder: Path) -> bytes:
    return (EXAMPLE / "rank0.pt.trace.json.gz").read_bytes()


def dump(folder: Path) -> bytes:
    entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:send",
             "input_sizes": [[8]], "input_dtypes": ["Float"], "state": "started", "retired": False,
             "time_created_ns": 3, "frames": [{"name": "step", "filename": "a.py", "line": 1}]}  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": [entry] * 5}, 2)


def snapshot(folder: Path) -> bytes:
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    block = {"address": 1, "size": 8, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "total_size": 16, "allocated_size": 8, "active_size": 8, "blocks": [block]}
    event = {"action": "alloc", "addr": 1, "size": 8, "frames": frames}
    return pickle.dumps({"segments": [segment] * 4, "device_traces": [[event] * 9]}, 4)


def database(folder: Path) -> bytes:
    return export(folder / "whole.sqlite").read_bytes()


def step_snapshot(folder: Path) -> bytes:
    return MemoryJob(layers=2).run().write(folder / "whole.pickle").read_bytes()


def operations(folder: Path) -> bytes:
    write_pipeline(Pipeline(stages=2, micro_batches=2, steps=2), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


def kernels(folder: Path) -> bytes:
    return ("==PROF== Connected\n" + details()).encode()


def memory_trace(folder: Path) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": step() * 3}).encode()


KINDS: dict[str, Callable[[Path], bytes]] = {
    "trace_0.json": trace, "trace_0.json.gz": zipped_trace, "dump_0": dump, "snapshot_0": snapshot,
    "a.sqlite": database, "step_0": step_snapshot, "a.parquet": operations, "kernels.csv": kernels,
    "memory_0.json": memory_trace,
}  # fmt: skip


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(60), id="few"), pytest.param(range(60, 1060), id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", KINDS)
def test_damage_ends_in_an_answer_or_a_line(name: str, seeds: range, tmp_path: Path) -> None:
    data = KINDS[name](tmp_path)
    path = tmp_path / name
    answered = 0
    for seed in seeds:
        path.write_bytes(damaged(data, random.Random(seed)))
        with contextlib.suppress(UserError):
            answered += "kind" in diagnose([path])
    assert answered > 0  # some damage is read over
