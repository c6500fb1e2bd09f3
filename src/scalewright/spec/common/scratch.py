"""Temporary folders that don't stay when their process is killed: the next start removes them.

    scalewright-KIND-xxxxxxxx     its process holds a lock on it, which the kernel takes back at any end
    the next one of that KIND     removes those that nobody holds, of this user, older than a minute

A lock and not a process's number: that one may belong to another host, container or program by now.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR

YOUNG_S = 60.0  # a folder may not have its lock yet


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """An empty folder below the system's temporary one, removed at the end; one word as its `kind`."""
    for left in Path(tempfile.gettempdir()).glob(f"scalewright-{kind}-*"):
        with suppress(OSError):
            facts = left.lstat()
            old = time.time() - facts.st_mtime > YOUNG_S
            ours = S_ISDIR(facts.st_mode) and hasattr(os, "getuid") and facts.st_uid == os.getuid()
            if old and ours and (handle := lock_folder(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(handle)
    with tempfile.TemporaryDirectory(prefix=f"scalewright-{kind}-") as name:
        handle = lock_folder(Path(name))
        try:
            yield Path(name)
        finally:
            if handle is not None:
                os.close(handle)


def lock_folder(folder: Path) -> int | None:
    """A handle that locks the folder until it is closed; None where there are no locks (Windows, some file
    systems). Raises BlockingIOError where another process holds it."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle
