"""The processor as procfs and cgroups describe it: what a container leaves is what may be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.machine.processor import Processor, read_processor


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine() -> None:
    found = read_processor()
    assert 1 <= found.usable_cores <= found.logical_cores
    assert 0 < found.usable_memory_bytes <= found.memory_bytes
    assert found.model


def test_a_container_of_cgroup_2(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name : Some CPU\nflags : fpu avx2 amx_bf16 avx512_bf16\n",
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/memory.max": "1073741824\n",
            "sys/fs/cgroup/a/memory.max": "max\n",
            "sys/devices/system/node/node0/x": "",
            "sys/devices/system/node/node1/x": "",
        },
    )
    found = read_processor(root)
    assert found.model == "Some CPU"
    assert found.flags == ("amx_bf16", "avx512_bf16", "avx2")
    assert found.quota_cores == 1.5
    assert found.usable_cores == 1
    assert found.usable_memory_bytes == 2**30
    assert found.numa_nodes == 2


def test_a_container_of_cgroup_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "536870912",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    found = read_processor(root)
    assert found.quota_cores == 1.0
    assert found.memory_limit_bytes == 2**29


def test_nothing_to_read_is_no_limit(tmp_path: Path) -> None:
    found = read_processor(tmp_path)
    assert (found.quota_cores, found.memory_limit_bytes, found.numa_nodes, found.flags) == (None, None, None, ())


@pytest.mark.parametrize(("affinity", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (1, 4.0, 1), (4, 0.5, 1)])
def test_usable_cores(affinity: int, quota: float | None, usable: int) -> None:
    base = Processor("x", 8, 4, 8, None, (), 1, 2**34, 2**33, None)
    assert replace(base, affinity_cores=affinity, quota_cores=quota).usable_cores == usable
