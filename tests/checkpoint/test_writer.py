"""The writer's process: what it writes, what it says of it, and when it ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import alive, wait_for
from scalewright.checkpoint.background import Background
from scalewright.checkpoint.snapshot import HostFile
from scalewright.checkpoint.writer import is_finite, write_file
from worlds import CPU


def held(content: bytes) -> HostFile:
    file = HostFile(len(content), CPU)
    file.bytes[:] = content
    return file


def answer(writer: Background, seconds: float = 20.0) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while (found := writer.poll(0.1)) is None:
        assert time.monotonic() < end
    return found


def job(folder: Path, file: HostFile, name: str = "a") -> dict[str, Any]:
    return {"folder": str(folder), "files": [{"name": name, "bytes": file.size, "tensors": []}]}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_numbers_that_are_not_finite(dtype):
    """As torch tells it, of every kind; the largest finite number is finite."""
    kind = getattr(torch, dtype)
    for value in (0.0, -1.5, torch.finfo(kind).max, torch.finfo(kind).min, math.nan, -math.nan, math.inf, -math.inf):
        tensor = torch.ones(5, dtype=kind)
        tensor[3] = value
        content = bytes(tensor.view(torch.uint8).tolist())
        expected = bool(torch.isfinite(tensor.double()).all())  # float8_e4m3fn has no infinity
        assert is_finite(memoryview(content), dtype, 0, len(content)) is expected, value
    assert is_finite(memoryview(b"\xff" * 8), "int64", 0, 8)


def test_a_file_and_its_checksum(tmp_path):
    content = bytes(range(256)) * 40_000  # pieces, and a rest
    numbers = torch.tensor([1.0, math.inf, 2.0, 3.0])
    content += bytes(numbers.view(torch.uint8).tolist())
    end = len(content)
    tensors = [["bad", "float32", end - 16, end], ["good", "float32", end - 8, end]]
    about, bad = write_file(tmp_path / "file", memoryview(content), tensors)
    assert (tmp_path / "file").read_bytes() == content
    assert about == {"bytes": end, "checksum": f"crc32:{zlib.crc32(content):08x}"}
    assert bad == ["bad"]


def test_a_job_is_written_from_memory(tmp_path):
    """Twice, by one process; the second time with what is there then."""
    writer, file = Background(), held(b"one" * 1000)
    try:
        for content in (b"one" * 1000, b"two" * 1000):
            file.bytes[:] = content
            name = content[:3].decode()
            writer.begin(job(tmp_path, file, name), [file.handle])
            found = answer(writer)
            assert (tmp_path / name).read_bytes() == content
            assert found["files"][name] == {"bytes": 3000, "checksum": f"crc32:{zlib.crc32(content):08x}"}
        pid = writer.pid
        assert pid is not None
    finally:
        writer.close()
    wait_for(lambda: not alive([pid]))


def test_a_folder_that_is_gone_is_a_problem_and_no_end(tmp_path):
    writer, file = Background(), held(b"one")
    try:
        writer.begin(job(tmp_path / "gone", file), [file.handle])
        assert "No such file" in answer(writer)["problem"]
        writer.begin(job(tmp_path, file), [file.handle])
        assert answer(writer)["files"]["a"]["bytes"] == 3
    finally:
        writer.close()


def test_signals_that_stop_a_run_leave_it_alone_and_one_that_was_killed_is_followed(tmp_path):
    writer, file = Background(), held(b"one")
    try:
        writer.begin(job(tmp_path, file), [file.handle])
        assert "files" in answer(writer)
        first = writer.pid
        assert first is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            os.kill(first, number)
        writer.begin(job(tmp_path, file, "b"), [file.handle])
        assert "files" in answer(writer)
        assert writer.pid == first
        os.kill(first, signal.SIGKILL)
        assert "SIGKILL" in answer(writer)["problem"]
        writer.begin(job(tmp_path, file, "c"), [file.handle])
        assert "files" in answer(writer)
        assert writer.pid not in (first, None)
    finally:
        writer.close()


ORPHAN = """
import os, signal, sys, time
from scalewright.checkpoint.background import Background
writer = Background()
writer.start()
print(writer.pid, flush=True)
if os.fork() == 0:  # a child that holds the other end of the socket, as a pool of the user's may
    print(os.getpid(), flush=True)
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_leaves_with_its_rank():
    rank = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    writer, child = (int(rank.stdout.readline()) for _ in range(2))
    try:
        rank.wait(timeout=20)
        wait_for(lambda: not alive([writer]), 10)
    finally:
        os.kill(child, signal.SIGKILL)
        rank.stdout.close()
