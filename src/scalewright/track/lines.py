"""Appending JSON lines so that a kill, a full disk or two writers never cost more than one line.

Each line is one `write` to a file opened for appending: the kernel keeps such writes whole and in order, so a launcher
and rank 0 may share a file. A file that ends in half a line (its writer was killed) is continued on a new line; readers
skip the half. A file that was removed or replaced under its writer ends the run.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from scalewright.spec.common.files import sync_folder
from scalewright.spec.errors import RunError
from scalewright.track.saved import COPIED_BYTES, crc32

Row = Mapping[str, Any]
LOOK_SECONDS = 1.0  # between looks at whether the path still leads to the file: cheap, but not on every disk


class LineWriter:
    """An append-only file of JSON objects. Thread-safe; flushed to the kernel line by line (about 10 µs)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._looked, self._saved = time.monotonic(), (0, 0)  # bytes, CRC-32
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._place = self.path.absolute()  # a user's code may change the working directory
            self._file = cast(BinaryIO, open(self.path, "a+b", buffering=0))  # noqa: SIM115 - held open for the run
            self._torn = _ends_in_half_line(self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def append(self, row: Row) -> None:
        """Writes one object as one line; raises RunError when the disk refuses it, or the file is gone."""
        line = encode(row)
        with self._lock:
            self.look(every=LOOK_SECONDS)
            if self._torn:
                line = b"\n" + line
            try:
                written = self._file.write(line)
            except OSError as error:
                self._torn = True
                raise cannot_write(self.path, error) from error
            self._torn = written != len(line)
            if self._torn:
                raise RunError(f"wrote only part of a line to {self.path}: the disk is full")

    def look(self, every: float = 0.0) -> None:
        """Raises RunError when the path no longer leads to the open file, whose lines would then be lost;
        looks again after `every` seconds."""
        if time.monotonic() - self._looked < every:
            return
        self._looked, reason = time.monotonic(), ""
        try:
            same = os.path.samestat(os.stat(self._place), os.fstat(self._file.fileno()))
        except OSError as error:
            same, reason = False, f" ({error.strerror})"
        if not same:
            lost = f"{self.path} was removed, renamed or replaced under the run{reason}: what it writes is lost"
            raise RunError(lost)

    def sync(self) -> None:
        """Has every line that was written so far on the disk; lines can be added meanwhile."""
        try:
            os.fsync(self._file.fileno())
            sync_folder(self._place.parent)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def copy(self) -> bytes:
        """The copy of the file that a checkpoint holds (saved.py)."""
        with self._lock:
            self.look()
            try:
                size, (before, crc) = os.fstat(self._file.fileno()).st_size, self._saved
                end = max(size, before)  # one that was cut under the run differs from now on, as it should
                self._saved = end, crc32(self._file, before, end, crc)
                self._file.seek(start := max(0, size - COPIED_BYTES))
                newest = self._file.read(COPIED_BYTES)
            except OSError as error:
                raise cannot_write(self.path, error) from error
        head = encode({"bytes": end, "crc32": self._saved[1]})
        return head + (newest[newest.find(b"\n") + 1 :] if start else newest)

    def close(self) -> None:
        with suppress(OSError, ValueError):  # a pipe, a file system without it, or closed before
            os.fsync(self._file.fileno())
        self._file.close()


def encode(row: Row) -> bytes:
    """One line of JSON with its newline: floats by `repr`, so that they round-trip; non-finite is null."""
    try:
        text = json.dumps(row, allow_nan=False, default=_plain)
    except ValueError:  # a non-finite number somewhere inside
        text = json.dumps(_without_nonfinite(row), default=_plain)
    return text.encode() + b"\n"


def finite(row: Row) -> tuple[Row, dict[str, str]]:
    """`row` with each non-finite number replaced by None, and those numbers as text (`{"loss": "nan"}`).

    >>> finite({"step": 3, "loss": float("inf")})
    ({'step': 3, 'loss': None}, {'loss': 'inf'})
    """
    bad = {key: _number(value) for key, value in row.items() if not _is_finite(value)}
    return ({**row, **dict.fromkeys(bad)} if bad else row), {key: repr(value) for key, value in bad.items()}


def _is_finite(value: Any) -> bool:
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int or kind is str or kind is bool or value is None or not hasattr(value, "item"):
        return True
    return math.isfinite(_number(value))


def _number(value: Any) -> float:
    return float(value.item()) if hasattr(value, "item") else float(value)


def _without_nonfinite(value: Any) -> Any:
    """The same data, however deep, with None for each non-finite number."""
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(item) for item in value]
    return value if _is_finite(value) else None


def _plain(value: Any) -> Any:
    """Other types for JSON: a NumPy or torch scalar as its number, a path as its text."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a row can't hold {type(value).__name__}: {value!r}")


def _ends_in_half_line(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror or error}")
