"""Files that are written whole or not at all, and that never replace files of others.

write_whole    temporary file, fsync, rename, fsync of the folder: a crash leaves the old file or the new one
write_signed   the same for files that a user asked for (`plan --out`): the last line is a checksum of the
               others, so that a file which was edited since is the user's and needs --force
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from scalewright.spec.errors import UserError

SIGNATURE = "# written by Scalewright, replaced when it is written again unless it was edited: crc32 "


def write_whole(path: str | Path, text: str) -> None:
    """Replaces a file by this text, atomically and durably; a link in its place is replaced, not followed.

    Raises OSError; then the temporary file is removed and the old file unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    try:
        with open(temporary, "x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk; does nothing on Windows."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # nor on some network file systems
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
        what = f"cannot write the file: {error.strerror or error}"
        raise UserError(what, str(path), "choose another path") from None


def check_replaceable(path: Path, force: bool = False) -> None:
    """Raises UserError when `write_signed` would refuse to write; called before long work."""
    if not force and path.exists() and not is_signed(path):
        raise UserError(
            "the file is there already, and isn't as `--out` wrote it",
            str(path),
            "give another name, or --force to replace it",
        )


def is_signed(path: Path) -> bool:
    """Whether `write_signed` wrote this file and it wasn't edited since."""
    try:
        if not path.is_file():  # a pipe would block
            return False
        text, _, crc = path.read_bytes().decode().rpartition(SIGNATURE)
    except (OSError, UnicodeDecodeError):
        return False
    return crc.strip() == f"{zlib.crc32(text.encode()):08x}"
