"""The processor and memory that this process may use: the machine's own, and what a container leaves of them.

    cores ──┬── affinity mask ──┐
            └── cgroup quota ───┴──► usable cores     memory ── cgroup limit ──► usable memory

Everything is read where the system reports it (procfs, cgroup 1 and 2, sysctl); what can't be read is None.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Instruction sets that decide how fast a matrix multiplication can be, as Linux and macOS spell them.
FLAGS = (
    "amx_tile", "amx_bf16", "amx_fp16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx512f",
    "avx_vnni", "avx2", "avx", "fma", "f16c", "asimd", "asimddp", "sve", "sve2", "sme", "bf16", "i8mm",
)  # fmt: skip


@dataclass(frozen=True)
class Processor:
    """One machine's processor and memory, in cores and bytes."""

    model: str
    logical_cores: int
    physical_cores: int | None
    affinity_cores: int  # in this process's affinity mask
    quota_cores: float | None  # a container's CPU quota; None = no quota
    flags: tuple[str, ...]
    numa_nodes: int | None
    memory_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None  # a container's limit; None = no limit below the machine's

    @property
    def usable_cores(self) -> int:
        """Cores that this process can keep busy: affinity and quota taken together, at least 1."""
        quota = math.floor(self.quota_cores) if self.quota_cores is not None else self.affinity_cores
        return max(1, min(self.affinity_cores, quota))

    @property
    def usable_memory_bytes(self) -> int:
        return min(self.memory_bytes, self.memory_limit_bytes or self.memory_bytes)


def read_processor(root: Path = Path("/")) -> Processor:
    """This machine's processor; `root` stands before /proc and /sys, for tests."""
    import psutil  # late: what it imports differs from system to system

    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or os.cpu_count() or 1
    return Processor(
        model=_model(root),
        logical_cores=logical,
        physical_cores=psutil.cpu_count(logical=False),
        affinity_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical,
        quota_cores=_quota(root),
        flags=_flags(root),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        memory_bytes=int(memory.total),
        memory_available_bytes=int(memory.available),
        memory_limit_bytes=_memory_limit(root, int(memory.total)),
    )


def _read(path: Path) -> str:
    """A small system file's text; empty when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    """One value of macOS's sysctl; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpuinfo(root: Path, *keys: str) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def _model(root: Path) -> str:
    named = _cpuinfo(root, "model name", "Hardware", "Processor") or _sysctl("machdep.cpu.brand_string")
    return named or platform.processor() or platform.machine() or "unknown processor"


def _flags(root: Path) -> tuple[str, ...]:
    words = {*_cpuinfo(root, "flags", "Features").split(), *_sysctl("machdep.cpu.leaf7_features").lower().split()}
    if _sysctl("hw.optional.arm.FEAT_BF16") == "1":
        words.add("bf16")
    return tuple(flag for flag in FLAGS if flag in words)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders that may limit this process: its own group and each above it, of cgroup 2 and of 1."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = base / path.strip("/")
        folders += [folder, *[parent for parent in folder.parents if base == parent or base in parent.parents]]
    return folders


def _quota(root: Path) -> float | None:
    """The smallest CPU quota in cores; None when there is none."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        new = _read(folder / "cpu.max").split()
        if len(new) == 2 and new[0] != "max":
            quotas.append(int(new[0]) / int(new[1]))
        old, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if old and period and int(old) > 0:
            quotas.append(int(old) / int(period))
    return min(quotas, default=None)


def _memory_limit(root: Path, total: int) -> int | None:
    """The smallest memory limit below the machine's own size; None when there is none."""
    limits = []
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit() and int(text) < total:
                limits.append(int(text))
    return min(limits, default=None)
