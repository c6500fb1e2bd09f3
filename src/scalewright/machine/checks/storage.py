"""The folder that a run would write to: room, speed, and whether its clock agrees with this machine's."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from scalewright.machine.findings import gib
from scalewright.spec.common.formatting import metric
from scalewright.spec.errors import Finding

GROUP = "storage"
BLOCK = 4 << 20
NETWORK = {"nfs", "nfs4", "cifs", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs", "9p", "glusterfs"}


def space(folder: Path) -> Finding:
    """Room for checkpoints: a checkpoint with optimizer state is 12 bytes a parameter and more."""
    total, _, free = shutil.disk_usage(folder)
    what = f"{gib(free)} free of {gib(total)} at {folder.resolve()}"
    data = {"free_bytes": free, "total_bytes": total}
    if free < 2**30:
        return Finding(GROUP, "space", "problem", what, "free some, or set out_dir elsewhere", data)
    if free < 10 * 2**30:
        return Finding(GROUP, "space", "warn", what, "enough for about 0.8e9 parameters a checkpoint at most", data)
    return Finding(GROUP, "space", "ok", what, data=data)


def write_speed(folder: Path, seconds: float = 0.4) -> list[Finding]:
    """Writes and syncs a file for a short while; also compares the file's time with this machine's clock."""
    try:
        handle, name = tempfile.mkstemp(prefix=".scalewright-doctor-", dir=folder)
    except OSError as error:
        what = f"cannot write to {folder.resolve()}: {error.strerror or error}"
        return [Finding(GROUP, "write speed", "problem", what, "choose a folder that you may write to (out_dir)")]
    block, written, start = os.urandom(BLOCK), 0, time.perf_counter()
    try:
        with os.fdopen(handle, "wb") as file:
            while written < 16 * BLOCK and (not written or time.perf_counter() - start < seconds):
                file.write(block)
                written += len(block)
            file.flush()
            os.fsync(file.fileno())
            elapsed, stamp, now = time.perf_counter() - start, os.fstat(file.fileno()).st_mtime, time.time()
    finally:
        Path(name).unlink(missing_ok=True)
    return [_speed(written / elapsed, written), _skew(stamp - now)]


def _speed(per_s: float, written: int) -> Finding:
    what = f"{metric(per_s, 'B/s')} written and synced ({written >> 20} MiB)"
    data = {"write_bytes_per_s": per_s}
    if per_s < 50e6:
        fix = "save less often, or to a faster disk: a 1e9-parameter checkpoint takes minutes here"
        return Finding(GROUP, "write speed", "warn", what, fix, data)
    return Finding(GROUP, "write speed", "ok", what, data=data)


def _skew(difference: float) -> Finding:
    if abs(difference) > 2:
        what = f"the folder's file server is {difference:+.1f} s off this machine's clock"
        fix = "synchronise both with NTP: build tools and resume compare times"
        return Finding(GROUP, "clock skew", "warn", what, fix)
    return Finding(GROUP, "clock skew", "ok", "file times agree with this machine's clock")


def file_system(folder: Path) -> Finding | None:
    """A network file system is slow for many small files and can be stale."""
    import psutil  # late: what it imports differs from system to system

    place = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    if not mounts:
        return None
    nearest = max(mounts, key=lambda part: len(part.mountpoint))
    what = f"{nearest.fstype or 'unknown'} file system"
    if nearest.fstype.lower() in NETWORK:
        fix = "keep token shards on a local disk; checkpoints may stay"
        return Finding(GROUP, "file system", "note", what + ", over the network", fix)
    if nearest.fstype.lower() in {"tmpfs", "ramfs"}:
        what += ": it is memory, and gone after a restart"
        return Finding(GROUP, "file system", "warn", what, "set out_dir elsewhere")
    return Finding(GROUP, "file system", "ok", what)


def clock(root: Path = Path("/")) -> Finding:
    """Whether this machine's clock is synchronised, where the system reports it."""
    if time.time() < 1.7e9:  # November 2023, before this program was written
        what = f"this machine's clock says {time.strftime('%Y-%m-%d')}"
        return Finding(GROUP, "clock", "problem", what, "set the clock: certificates and resume depend on it")
    if (root / "run/systemd/timesync/synchronized").exists():
        return Finding(GROUP, "clock", "ok", "the clock is synchronised (systemd-timesyncd)")
    keepers = [name for name in ("run/chrony", "run/ntpd.pid", "var/run/ntpd.pid") if (root / name).exists()]
    if keepers:
        return Finding(GROUP, "clock", "ok", "a time service keeps the clock")
    return Finding(GROUP, "clock", "note", "cannot tell here whether the clock is synchronised")
