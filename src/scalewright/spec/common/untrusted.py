"""Untrusted files, read within limits on their size, their depth and the paths they contain.

    a checkpoint's manifest, a weight index, a config.json     may come from anywhere
        any file        regular, as a pipe may block and a device never end; a pipe of the shell's (`<(...)`,
                        /dev/stdin) where a stream is meant
        JSON            at most `limit` bytes; nesting too deep for the parser is an error, not a crash
        file names      relative, without `..`; a link may lead within the folder, or from a snapshot of the
                        Hugging Face cache to that repository's blobs; regular files only

Code that such a file names runs only with --trust-code: `check_trusted` in `spec/user_code.py`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from scalewright.spec.errors import UserError

JSON_BYTES = 64 << 20  # the weight index of a model of 60,000 tensors takes 6 MB


def parse_json(text: str | bytes, once: bool = False) -> Any:
    """The value of a JSON text; raises ValueError for any defect, deep nesting included.

    `once`: also for a key that an object has twice, where the last one would win.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"key '{max(keys, key=keys.count)}' is written twice")
    return dict(pairs)


def read_json(path: Path, limit: int = JSON_BYTES) -> Any:
    """The value in a JSON file; raises FileNotFoundError, OSError, or ValueError for what isn't JSON."""
    return parse_json(read_bytes(path, limit))


def open_regular(path: str | Path, stream: bool = False) -> BinaryIO:
    """A regular file, to be read; raises OSError at once for what could block or never end.

    `stream`: a pipe that the shell has opened, such as `<(...)`, will do.
    """
    check_regular(path, stream)
    return open(path, "rb")


def check_regular(path: str | Path, stream: bool = False) -> None:
    """Raises OSError for a path that exists and isn't a regular file; `stream` as for `open_regular`."""
    mode = os.stat(path).st_mode if os.path.lexists(path) else stat.S_IFREG
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode) and not (stream and stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_bytes(path: str | Path, limit: int, stream: bool = False) -> bytes:
    """The content of a regular file (or a `stream`); raises OSError, or ValueError beyond `limit` bytes."""
    with open_regular(path, stream) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(limit, size or limit) + 1)  # `read` takes memory for all it may
    if len(content) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return content


def inside(folder: Path, name: str) -> Path:
    """The path of the file `name` of a manifest or an index in `folder`; it need not exist.

    Raises UserError for a name that leads out of the folder, by itself or through a link, and for anything
    but a regular file.
    """
    parts = PurePosixPath(name).parts
    plain = bool(parts) and ".." not in parts and not name.startswith("/")
    if not plain or any(character in name for character in "\\:\0"):
        raise UserError(f"it names the file {name!r}, outside its folder", str(folder), "don't use this folder")
    path = folder / name
    try:
        target, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # links in a circle
        raise UserError(f"{name!r} is a link that leads nowhere", str(folder), "copy the file there") from None
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else root
    if not (target.is_relative_to(root) or target.is_relative_to(blobs)):
        how = "copy the file there if it belongs to it"
        raise UserError(f"{name!r} is a link to {target}, outside its folder", str(folder), how)
    if target.exists() and not target.is_file():
        raise UserError(f"{name!r} is not a regular file", str(folder), "don't use this folder")
    return path
