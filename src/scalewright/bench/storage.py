"""Writing and reading a file of a checkpoint's size, with the page cache treated as such.

    write          into the page cache             how fast a checkpoint's call comes back
    write + sync   until the device has it         how fast a checkpoint is safe
    read, cached   from the page cache             a restart on the same machine at once
    read, cold     after the kernel was asked to   a restart elsewhere or later; left out where the
                   drop the file's pages           system can't be asked (macOS)

The kernel drops only what is written out, hence after the sync; a disk's or hypervisor's cache stays. Bytes
are random (a file system that compresses gains nothing), and the file is removed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scalewright.spec.errors import UserError

BLOCK = 1 << 24


def storage(folder: Path, size: int = 1 << 28) -> Iterator[dict[str, object]]:
    """Rows of bytes/s for a file of `size` bytes in `folder`; raises UserError where it can't be written."""
    block = os.urandom(min(size, BLOCK))
    blocks, rest = divmod(size, len(block))
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="scalewright-bench-") as file:
            start = time.perf_counter()
            for _ in range(blocks):
                file.write(block)
            file.write(block[:rest])
            file.flush()
            written = time.perf_counter()
            os.fsync(file.fileno())
            synced = time.perf_counter()
            yield _row("write", size, written - start)
            yield _row("write and sync", size, synced - start)
            yield _row("read, cached", size, _read(file.name))
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                yield _row("read, cold", size, _read(file.name))
    except OSError as error:
        how = "give a folder that can be written to with --folder, or a smaller --bytes"
        raise UserError(f"cannot write a file there: {error.strerror}", str(folder), how) from None


def _read(name: str) -> float:
    buffer = bytearray(BLOCK)
    start = time.perf_counter()
    with open(name, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def _row(what: str, size: int, seconds: float) -> dict[str, object]:
    return {"what": what, "bytes": size, "time_s": seconds, "bytes_per_s": size / max(seconds, 1e-9)}
