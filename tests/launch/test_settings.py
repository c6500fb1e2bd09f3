"""What is set before libraries start: the user's own environment wins, limits only rise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scalewright.launch import settings
from scalewright.spec.errors import UserError

LIMIT = """
import resource
from scalewright.launch.settings import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
print(raise_file_limit(256), resource.getrlimit(resource.RLIMIT_NOFILE))
print(raise_file_limit(100), raise_file_limit())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_limit_of_open_files_is_raised_as_far_as_allowed():
    done = subprocess.run([sys.executable, "-c", LIMIT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["256 (256, 512)", "256 512"]


ALONE = """
import resource, torch
from scalewright.launch.settings import keep_few_kernels
torch.set_num_threads(1)
keep_few_kernels()

def mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

weight = torch.ones(64, 64, dtype=torch.bfloat16)
for rows in range(1, 900):
    torch.ones(rows, 64, dtype=torch.bfloat16) @ weight
    if rows == 200:
        before = mib()
print(mib() - before)

from scalewright.launch.settings import quiet_profiler
quiet_profiler()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    torch.ones(3) + 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kernels_for_ever_new_shapes_are_dropped_and_the_profiler_writes_no_log_lines():
    """700 products, at 0.3 to 1 MiB each, are 300 MiB where none is dropped."""
    ours = ("CACHE_CAPACITY", "KINETO_LOG_LEVEL")
    clean = {name: value for name, value in os.environ.items() if not name.endswith(ours)}
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100
    assert "profiler_start" not in done.stderr


def test_flight_records_go_into_the_run_folder_unless_the_user_says_where(tmp_path, monkeypatch):
    environ = {"TORCH_FR_BUFFER_SIZE": "50", "PATH": ""}
    monkeypatch.setattr(os, "environ", environ)
    settings.keep_flight_records(tmp_path / "hangs")
    assert environ["TORCH_FR_BUFFER_SIZE"] == "50"
    assert environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert environ["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "hangs" / "nccl-rank-")


def test_expandable_segments_unless_the_user_chose(monkeypatch):
    """Under torch's newer name; neither of its two names is overwritten."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    settings.use_expandable_segments()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    settings.use_expandable_segments()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "backend:cudaMallocAsync"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    settings.use_expandable_segments()
    assert "PYTORCH_ALLOC_CONF" not in os.environ


@pytest.mark.skipif(sys.platform == "win32", reason="users of Unix")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    """A container's user that /etc/passwd doesn't know."""
    for name in ("HOME", "XDG_CACHE_HOME", "SCALEWRIGHT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(UserError, match="SCALEWRIGHT_CACHE"):
        settings.cache_folder()
