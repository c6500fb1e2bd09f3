"""Memory and its limits, swap, shared memory, and how many files may be open."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

from scalewright.machine.findings import gib
from scalewright.machine.processor import Processor
from scalewright.spec.errors import Finding

GROUP = "memory"
FEW_FILES = 4096  # shards of a corpus, sockets of a few dozen peers, and libraries
SMALL_SHARED = 2**30  # containers start with 64 MiB; NCCL and data workers pass buffers through it


def memory(processor: Processor) -> Finding:
    """How much there is, how much is free, and what a container allows."""
    free, usable = processor.memory_available_bytes, processor.usable_memory_bytes
    total, limit = processor.memory_bytes, processor.memory_limit_bytes
    data = {"memory_bytes": total, "available_bytes": free, "limit_bytes": limit}
    what = f"{gib(free)} free of {gib(total)}"
    if limit is not None:
        what += f"; a container's limit of {gib(usable)} ends a process that passes it"
        return Finding(GROUP, "memory", "note", what, "raise the limit, or plan for it", data)
    if free < 0.1 * total or free < 2**30:
        return Finding(GROUP, "memory", "warn", what, "stop what else runs: a run that meets the end is killed", data)
    return Finding(GROUP, "memory", "ok", what, data=data)


def swap() -> Finding:
    """Swap in use: a run that touches it slows down a hundredfold."""
    import psutil  # late: what it imports differs from system to system

    usage = psutil.swap_memory()
    if not usage.total:
        return Finding(GROUP, "swap", "ok", "no swap: a run that needs more memory fails at once, and says so")
    what = f"{gib(usage.used)} of {gib(usage.total)} swap in use"
    if usage.used > 0.25 * usage.total:
        fix = "free memory first, or turn it off while training: sudo swapoff -a"
        return Finding(GROUP, "swap", "warn", what, fix)
    return Finding(GROUP, "swap", "ok", what)


def shared_memory(path: Path = Path("/dev/shm")) -> Finding:
    """/dev/shm: processes of one machine pass buffers through it."""
    if not path.is_dir():
        return Finding(GROUP, "shared memory", "note", f"there is no {path} on this system")
    total, _, free = shutil.disk_usage(path)
    what = f"{gib(free)} free of {gib(total)} in {path}"
    data = {"free_bytes": free, "total_bytes": total}
    if total < SMALL_SHARED:
        fix = "start the container with --shm-size=8g or --ipc=host"
        return Finding(GROUP, "shared memory", "warn", what, fix, data)
    if free < SMALL_SHARED // 4:
        return Finding(GROUP, "shared memory", "warn", what, f"remove what ended processes left in {path}", data)
    return Finding(GROUP, "shared memory", "ok", what, data=data)


def open_files() -> Finding:
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return Finding(GROUP, "open files", "note", "this system sets no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY):
        return Finding(GROUP, "open files", "ok", "no limit of open files")
    data = {"soft": soft, "hard": hard}
    if soft < FEW_FILES:
        what = f"at most {soft} open files"
        return Finding(GROUP, "open files", "warn", what, f"ulimit -n {max(FEW_FILES, 65536)}", data)
    return Finding(GROUP, "open files", "ok", f"up to {soft} open files", data=data)
