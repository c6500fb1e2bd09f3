"""Nsight Systems' exports, of several versions' columns, damaged ones, and ones with traps in them."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import pytest

from scalewright.diagnose.breakdown import activity, breakdown
from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.traces import nsys
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.nsys import read_nsys

PROCESS = 7 << 24


def export(path: Path, suffix: str = "", name_column: str = "shortName") -> Path:
    """Two GPUs: 4 µs of compute, 2 of them beside a copy of 6, in a window of 12."""
    with sqlite3.connect(path) as base:
        base.executescript(f"""
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL{suffix}
                (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
                 globalPid INTEGER, {name_column} INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
                (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
                 globalPid INTEGER, copyKind INTEGER, bytes INTEGER, virtualAddress INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
                (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1000000);
        """)
        for device in (0, 1):
            base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL{suffix} VALUES (1000, 5000, ?, 7, ?, ?, 1)",
                         (device, 10 + device, PROCESS))  # fmt: skip
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (7000, 13000, ?, 8, 99, ?, 1, 64, 0)",
                         (device, PROCESS))  # fmt: skip
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (100, 200, ?, ?, 2)", (PROCESS + 5, 10 + device)
            )
    return path


@pytest.mark.parametrize(("suffix", "name"), [("", "shortName"), ("_V2", "demangledName"), ("", "name")])
def test_a_trace_for_each_gpu_whatever_the_version(tmp_path: Path, suffix: str, name: str) -> None:
    traces = read_nsys(export(tmp_path / "a.sqlite", suffix, name))
    assert len(traces) == 2
    for trace in traces:
        what = activity(trace)
        assert what is not None
        parts = breakdown(what)
        assert (parts.window, parts.compute, parts.exposed_copy, parts.idle) == (12_000, 4_000, 6_000, 2_000)
        assert what.start == 1_001_000
        kernel = int((trace.category == 0).argmax())
        assert trace.names[trace.name[kernel]] == "gemm"
        assert trace.names[trace.name[trace.launches[kernel]]] == "cudaLaunchKernel"


def test_the_command_takes_it(tmp_path: Path) -> None:
    answer = diagnose([export(tmp_path / "a.sqlite")])
    assert answer["ranks"] == [0, 1]
    assert answer["breakdown_pct"]["exposed_copy"] == pytest.approx(50)


def test_a_gzipped_export_is_the_same(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(
        b"".join(gzip.compress(path.read_bytes()[at : at + 5]) for at in range(0, 5000, 5))
        + gzip.compress(path.read_bytes()[5000:])
    )
    plain, unzipped = diagnose([path]), diagnose([packed])
    assert unzipped["breakdown_pct"] == plain["breakdown_pct"]
    assert unzipped["top_kernels"] == plain["top_kernels"]
    assert unzipped["per_rank"][0]["file"] == "a.sqlite.gz"


@pytest.mark.parametrize("kept", [17, 400, 0.5])
def test_a_gzipped_export_that_was_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    packed = tmp_path / "a.sqlite.gz"
    data = gzip.compress(export(tmp_path / "a.sqlite").read_bytes())
    packed.write_bytes(data[: int(kept * len(data)) if kept < 1 else int(kept)])
    with pytest.raises(NotATrace):
        read_nsys(packed)


def test_a_gzip_of_too_many_bytes_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys, "MOST", 1 << 20)
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(nsys.MAGIC + bytes(64 << 20)))
    with pytest.raises(NotATrace, match="larger"):
        read_nsys(packed)


def test_views_and_virtual_tables_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "trap.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL "
                     "SELECT x + 1 FROM n) SELECT x AS start FROM n")  # fmt: skip
    with pytest.raises(NotATrace, match="no activity"):
        read_nsys(path)


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    path = export(tmp_path / "a.sqlite")
    data = bytearray(path.read_bytes())
    for _ in range(source.randint(1, 40)):
        data[source.randrange(16, len(data))] = source.randrange(256)
    path.write_bytes(bytes(data[: source.choice([len(data), len(data) // 2])]))
    try:
        read_nsys(path)
    except NotATrace:
        return
