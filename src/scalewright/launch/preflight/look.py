"""Looks at this machine for the rules: limits, interfaces, ports, folders, cards. It changes nothing.

Everything is read from the system in some milliseconds. What may hang (a name that has to be resolved, a folder of a
dead file server) is asked in a thread that is left behind after a second or two; what can't be read is None.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from scalewright.launch.begin import cores
from scalewright.launch.preflight.facts import Card, Folder, Interface, Machine, ProcessPlace, Space
from scalewright.spec.common.ports import listener

T = TypeVar("T")
PATIENCE_S = 1.5
LIMITS = {"open_files": "RLIMIT_NOFILE", "locked_memory": "RLIMIT_MEMLOCK", "processes": "RLIMIT_NPROC",
          "file_size": "RLIMIT_FSIZE", "address_space": "RLIMIT_AS"}  # fmt: skip
RAISED_BY_US = ("open_files",)  # to the hard limit, when a run starts (settings.py)
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
CAP_IPC_LOCK = 14  # its bit in CapEff (linux/capability.h)
PEER_MEMORY = ("nvidia_peermem ", "nv_peer_mem ")
EFA_VENDOR = "0x1d0f"  # Amazon's number as a vendor of PCI devices


def look(
    environ: Mapping[str, str], place: ProcessPlace, folder: Path | None = None, root: Path = Path("/")
) -> Machine:
    """This machine. `folder`: of the run (None: folders aren't looked at); `root` stands before /proc and
    /sys, for tests."""
    ports = _words(root / "proc/sys/net/ipv4/ip_local_port_range")
    overcommit = _words(root / "proc/sys/vm/overcommit_memory")
    host = socket.gethostname()
    several, meets = place.nodes > 1, place.rank == 0 and place.world > 1 and place.port is not None
    taken = _taken(place.port) if meets and place.port and not place.store_is_up else None
    return Machine(
        host=host,
        interfaces=_interfaces(),
        host_addresses=_within(lambda: _addresses(host)) if several else None,
        meeting_addresses=_within(lambda: _addresses(place.address)) if several and place.address else None,
        port_taken=taken,
        port_holder=listener(place.port) if taken else "",
        ephemeral_ports=(int(ports[0]), int(ports[1])) if len(ports) == 2 else None,
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
        cards=_cards(root),
        kernel=_kernel(),
        peer_memory=_peer_memory(root),
        limits=_limits(root),
        locks_freely=_locks_freely(root),
        overcommit=int(overcommit[0]) if overcommit else None,
        cores=cores(),
        shared_memory=_space(Path("/dev/shm")),
        temporary=_within(lambda: _space(Path(tempfile.gettempdir()))) if folder is not None else None,
        folder=_within(lambda: _folder(folder)) if folder is not None else None,
        caches=_within(lambda: {name: _file_system(Path(environ[name])) for name in CACHES if environ.get(name)}) or {},
        clock=time.time(),
    )


def has_gpus(device: str, environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether a run's `device` means GPUs here, by the driver's files: torch isn't imported for it."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")  # `auto` takes the CPU then
    files = ("dev/nvidia0", "dev/nvidiactl", "dev/kfd", "dev/dxg")
    there = not hidden and any((root / file).exists() for file in files)
    return device == "cuda" or (device == "auto" and there)


def _within(ask: Callable[[], T], seconds: float = PATIENCE_S) -> T | None:
    """The answer, or None where it fails or takes longer."""
    answers: list[T] = []

    def run() -> None:
        with suppress(Exception):  # a look at a machine must not stop a start
            answers.append(ask())

    thread = threading.Thread(target=run, daemon=True, name="preflight")
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def _words(path: Path) -> list[str]:
    """The words of a small system file; none where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []


def _interfaces() -> dict[str, Interface] | None:
    import psutil  # late: what it imports differs from system to system

    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except (OSError, psutil.Error):
        return None
    internet = (socket.AF_INET, socket.AF_INET6)
    return {
        name: Interface(
            tuple(entry.address.split("%")[0] for entry in entries if entry.family in internet),
            states[name].isup if name in states else True,
            states[name].mtu if name in states else 0,
        )
        for name, entries in addresses.items()
    }


def _addresses(name: str) -> tuple[str, ...]:
    try:
        entries = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _taken(port: int) -> bool | None:
    """Whether somebody listens at a port of this machine; None where it isn't ours to ask (below 1024)."""
    if not 0 < port < 65536:
        return None
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store of ranks does
        try:
            asked.bind(("", port))
        except PermissionError:
            return None
        except OSError:
            return True
    return False


def _cards(root: Path) -> dict[str, Card]:
    cards = {}
    for folder in sorted((root / "sys/class/infiniband").glob("*")):
        states = {path.parent.name: _words(path) for path in folder.glob("ports/*/state")}
        ports = {int(number): words[-1] for number, words in states.items() if number.isdigit() and words}
        cards[folder.name] = Card(_words(folder / "device/vendor") == [EFA_VENDOR], ports)
    return cards


def _kernel() -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", platform.release()) if platform.system() == "Linux" else None
    return (int(match[1]), int(match[2])) if match else None


def _peer_memory(root: Path) -> bool | None:
    try:
        lines = (root / "proc/modules").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return any(line.startswith(PEER_MEMORY) for line in lines)


def _limits(root: Path) -> dict[str, int]:
    """The limits that are set for this process, in bytes or numbers."""
    limits: dict[str, int] = {}
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return limits
    for name, constant in LIMITS.items():
        if not hasattr(resource, constant):
            continue
        soft, hard = resource.getrlimit(getattr(resource, constant))
        value = hard if name in RAISED_BY_US else soft
        if value not in (-1, resource.RLIM_INFINITY):
            limits[name] = int(value)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        limits.pop("processes", None)  # root isn't counted
    most = _process_limit(root)
    if most is not None:
        limits["processes"] = min(most, limits.get("processes", most))
    return limits


def _process_limit(root: Path) -> int | None:
    """What this process's cgroup allows of processes and threads."""
    for line in _words(root / "proc/self/cgroup"):
        number, _, path = line.partition("::")
        if number == "0":
            words = _words(root / "sys/fs/cgroup" / path.lstrip("/") / "pids.max")
            return int(words[0]) if words and words[0].isdigit() else None
    return None


def _locks_freely(root: Path) -> bool:
    words = _words(root / "proc/self/status")
    if "CapEff:" not in words:
        return False
    return bool(int(words[words.index("CapEff:") + 1], 16) >> CAP_IPC_LOCK & 1)


def _space(path: Path) -> Space | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Space(usage.total, usage.free)


def _folder(path: Path) -> Folder:
    """The folder, or the nearest one above it that exists: a run makes the rest."""
    place = path.expanduser().resolve()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    inodes = None
    if hasattr(os, "statvfs"):
        state = os.statvfs(place)
        inodes = Space(state.f_files, state.f_favail) if state.f_files else None
    writable = os.access(place, os.W_OK | os.X_OK)
    return Folder(str(place), _space(place), _file_system(place), inodes, writable)


def _file_system(path: Path) -> str:
    """The kind of file system that a path is on: ext4, nfs4; empty where it isn't known."""
    import psutil

    place = path.expanduser().resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype.lower() if mounts else ""
