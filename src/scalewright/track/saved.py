"""A run's lines as a checkpoint has them, so that none goes missing unseen between a save and a resume.

    metrics.jsonl   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━│ save │━━━━━━ later lines
                    └────── size, CRC-32 ───────┘              the same at a resume: later lines go, no more
                                     └── copy ──┘              else what is missing comes from the copy, and
                                                               what that hasn't is named

The copy, `newest-metrics.jsonl` in the checkpoint's folder, is a line with size and CRC-32 and the newest 4 MiB (about
6,000 steps). Lines reach the disk (fsync) before the checkpoint does; a save reads those since the one before.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from scalewright.spec.common.jsonl import scan_jsonl

COPIED_BYTES = 4 << 20
COPY = "newest-{}"  # the name of a file's copy in a checkpoint's folder


@dataclass(frozen=True)
class Saved:
    """A file of lines at a save."""

    name: str
    step: int
    size: int
    crc32: int
    rows: list[tuple[bytes, dict[str, object]]]  # the newest

    def is_in(self, path: Path) -> bool:
        """Whether a file still begins with all that was saved."""
        if not path.exists():
            return self.size == 0
        with open(path, "rb") as file:
            return path.stat().st_size >= self.size and crc32(file, 0, self.size) == self.crc32

    def note(self, change: str) -> str:
        """A line about a file that isn't as it was saved."""
        return f"{self.name} isn't as it was at the save of step {self.step}: {change}"


def read_saved(folder: Path, name: str, step: int) -> Saved | None:
    """A file of lines by its copy in the checkpoint of `step`; None in one of an older release."""
    try:
        (_, head), *rows = scan_jsonl(folder / COPY.format(name))
        size = int(head["bytes"])
        whole = size >= sum(len(text) + 1 for text, _ in rows)  # else the file would be cut to less
        return Saved(name, step, size, int(head["crc32"]), rows) if whole else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def crc32(file: BinaryIO, start: int, end: int, value: int = 0) -> int:
    """The CRC-32 of a part of a file, where `value` is that of what lies before."""
    file.seek(start)
    while start < end and (piece := file.read(min(COPIED_BYTES, end - start))):
        start, value = start + len(piece), zlib.crc32(piece, value)
    return value
