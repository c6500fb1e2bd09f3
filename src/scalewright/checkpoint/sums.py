"""Checksums of a file's pieces, counted by other threads while it is written (pieces.py has their form).

The standard library alone: the process that writes beside training imports this (writer.py).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

PIECE = 64 << 20
THREADS = 2  # that count
AHEAD = 4  # pieces that wait for them; their tensors are kept until then


def write_views(path: Path, views: Iterable[memoryview]) -> tuple[int, str]:
    """Writes a new file of these bytes and flushes it to the disk; its size, and its checksum as a manifest has it.
    The disk begins with each piece, not with the flush (Linux: what isn't needed in memory is written), which takes a
    quarter less. Raises OSError."""
    size = 0
    with open(path, "xb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
        sums = _Sums(pool)
        for view in views:
            size += len(view)
            for start in range(0, len(view), PIECE):
                part = view[start : start + PIECE]
                sums.add(part)
                while part:  # a write may take less than it is given
                    part = part[file.write(part) :]
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), size - len(view) + start, PIECE, os.POSIX_FADV_DONTNEED)
        os.fsync(file.fileno())
        return size, sums.text()


def count_views(views: Iterable[memoryview]) -> tuple[int, str]:
    """Size and checksum of these bytes, which stay where they are."""
    with ThreadPoolExecutor(THREADS) as pool:
        sums, size = _Sums(pool), 0
        for view in views:
            sums.add(view)
            size += len(view)
        return size, sums.text()


class _Sums:
    """The checksums of a file's pieces, from its bytes as they are written."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.room = pool, PIECE
        self.parts: list[memoryview] = []
        self.sums: list[Future[int]] = []

    def add(self, view: memoryview) -> None:
        """The next bytes; they must stay as they are until `text`."""
        while view:
            part, view = view[: self.room], view[self.room :]
            self.parts.append(part)
            self.room -= len(part)
            if not self.room:
                self._close()

    def text(self) -> str:
        """Of all that was added."""
        if self.parts:
            self._close()
        return text_of([future.result() for future in self.sums])

    def _close(self) -> None:
        self.sums.append(self.pool.submit(sum_of, self.parts))
        self.parts, self.room = [], PIECE
        if len(self.sums) > AHEAD:
            self.sums[-AHEAD - 1].result()


def sum_of(parts: Iterable[memoryview | bytes]) -> int:
    """CRC-32 of these bytes."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def text_of(sums: Sequence[int]) -> str:
    """The checksums of a file's pieces as a manifest has them."""
    kind = "crc32" if len(sums) == 1 else f"crc32/{PIECE}"
    return f"{kind}:" + "".join(f"{value:08x}" for value in sums)
