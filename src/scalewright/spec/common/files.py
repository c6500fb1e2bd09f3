"""Files that are written whole or not at all, and temporary folders that don't stay when their process is killed.

write_whole      temporary file, fsync, rename, fsync of the folder: a crash leaves the old file or the new one
write_signed     the same for files that a user asked for (`plan --out`): the last line is a checksum of the
                 others, so that a file which was edited since is the user's and needs --force
scratch_folder   its process holds a lock on it, which the kernel takes back at any end; the next one of that kind
                 removes those that nobody holds, of this user, older than a minute. A lock and not a process's
                 number: that one may belong to another host, container or program by now.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR

from scalewright.spec.errors import UserError

SIGNATURE = "# written by Scalewright, replaced when it is written again unless it was edited: crc32 "


def write_whole(path: str | Path, text: str) -> None:
    """Replaces a file by this text, atomically and durably; a link in its place is replaced, not followed.

    Raises OSError; then the temporary file is removed and the old file unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk; does nothing on Windows."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # nor on some network file systems
            os.fsync(handle)
    finally:
        os.close(handle)


def write_signed(path: str | Path, text: str, force: bool = False) -> None:
    """Writes a file that the user asked for, and its folder when needed.

    Raises UserError when there is a file that this function didn't write, or that was edited since, unless
    `force`; and when it can't be written.
    """
    path = Path(path)
    try:
        check_replaceable(path, force)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text if text.endswith("\n") else text + "\n"
        write_whole(path, f"{text}{SIGNATURE}{zlib.crc32(text.encode()):08x}\n")
    except OSError as error:
        problem = f"cannot write the file: {error.strerror or error}"
        raise UserError(problem, str(path), "choose another path") from None


def check_replaceable(path: Path, force: bool = False) -> None:
    """Raises UserError when `write_signed` would refuse to write; called before long work."""
    if not force and path.exists() and not is_signed(path):
        how = "give another name, or --force to replace it"
        raise UserError("the file is there already, and isn't as `--out` wrote it", str(path), how)


def is_signed(path: Path) -> bool:
    """Whether `write_signed` wrote this file and it wasn't edited since."""
    try:
        if not path.is_file():  # a pipe would block
            return False
        text, _, crc = path.read_bytes().decode().rpartition(SIGNATURE)
    except (OSError, UnicodeDecodeError):
        return False
    return crc.strip() == f"{zlib.crc32(text.encode()):08x}"


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
