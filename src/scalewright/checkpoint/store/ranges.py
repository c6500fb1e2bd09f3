"""The parts of a checkpoint's file that a rank wants, fetched from a store by ranges.

    file     |── 64 MiB ──|── 64 MiB ──|── 64 MiB ──|─ rest ─|     pieces, each with a checksum (checkpoint/pieces.py)
    wanted    header           ▲ rows of one tensor                fetched: the first two, compared as they come

What has come lies in a sparse file beside the place of the whole one, under a hidden name with its checksums' digest;
a byte for each piece says that it is there. Ranks of a node share both, and fetch no piece twice.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import StoredFile, damaged
from scalewright.checkpoint.pieces import pieces_of
from scalewright.spec.common.untrusted import parse_json
from scalewright.spec.errors import UserError
from scalewright.storage.objects import AT_ONCE, PART_BYTES, Entry, Store

PREFIX = ".ranges-"


class Ranges:
    """One file of a checkpoint in a store, as far as it has been wanted."""

    def __init__(self, store: Store, entry: Entry, path: Path, expected: StoredFile) -> None:
        """`path`: where the whole file would lie; `expected`: by the manifest. Raises UserError for another size."""
        digest = sha256(expected.checksum.encode()).hexdigest()[:8]
        self.store, self.entry, self.whole, self.pieces = store, entry, path, pieces_of(expected)
        self.path = path.with_name(f"{PREFIX}{digest}-{path.name}")
        if entry.bytes != expected.bytes or not self.pieces:
            problem = f"{path.name} has {entry.bytes} bytes instead of {expected.bytes}, or no checksums that are known"
            raise damaged(f"the checkpoint is damaged: {problem}", path.parent)
        self._there = self.path.with_name(f"{self.path.name}.there")

    def want_rows(self, key: str, first: int, count: int) -> None:
        """Has `count` rows of a tensor there, from row `first` (all of a scalar). Raises UserError for a damaged piece,
        StoreError when the store fails."""
        head, header = self._header
        if (tensor := header.get(key)) is None:
            raise damaged(f"{self.whole.name} has no tensor '{key[:80]}'", self.whole.parent)
        begin, end = (head + int(offset) for offset in tensor["data_offsets"])
        shape: Sequence[int] = tensor["shape"]
        row = (end - begin) // shape[0] if shape and prod(shape) else end - begin
        self.want(begin + first * row, min(begin + (first + count) * row, end))

    @cached_property
    def _header(self) -> tuple[int, dict[str, Any]]:
        """(bytes before the tensors, the file's tensors)."""
        self.want(0, 8)
        with open(self.path, "rb", buffering=0) as file:
            length = int.from_bytes(file.read(8), "little")
            self.want(8, 8 + length)
            return 8 + length, dict(parse_json(file.read(length)))

    def want(self, begin: int, end: int) -> None:
        """Has these bytes there."""
        import fcntl  # not on Windows

        numbers = [n for n, (start, stop, _) in enumerate(self.pieces) if start < end and stop > begin]
        handle = os.open(self._there, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not self.path.exists():
                os.ftruncate(handle, 0)
            there = os.pread(handle, len(self.pieces), 0).ljust(len(self.pieces), b"\0")
            if missing := [n for n in numbers if not there[n]]:
                self._fetch(missing)
                for number in missing:
                    os.pwrite(handle, b"\1", number)
        except OSError as error:
            problem = f"cannot write: {error.strerror or error}"
            raise UserError(
                problem, str(self.path), "free some space, or set SCALEWRIGHT_CACHE to a larger disk"
            ) from None
        finally:
            os.close(handle)

    def _fetch(self, numbers: Sequence[int]) -> None:
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file, ThreadPoolExecutor(AT_ONCE) as pool:
            file.truncate(self.entry.bytes)
            for start, stop, checksum in (self.pieces[number] for number in numbers):
                parts = [(at, min(PART_BYTES, stop - at)) for at in range(start, stop, PART_BYTES)]
                value = 0
                file.seek(start)
                for content in pool.map(lambda part: self.store.get_range(self.entry.name, *part), parts):
                    value = zlib.crc32(content, value)
                    file.write(content)
                if f"{value:08x}" != checksum:
                    place = "" if len(self.pieces) == 1 else f" in bytes {start:,} to {stop:,}"
                    problem = f"{self.whole.name} is damaged{place} (its checksum differs)"
                    raise damaged(f"the checkpoint is damaged: {problem}", self.whole.parent)
            file.flush()
            os.fsync(file.fileno())
