"""The lines of a log that NCCL wrote, apart from everything else in it, read in bounded memory.

    3: node07:4711:4802 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC
       host   pid  tid  GPU     level text

What stands before the host is somebody else's: a task's number from srun, mpirun's `[1,0]<stdout>:`, a time.
Lines without a head are kept where they name NCCL (`NCCL version 2.7.8`, an exception of PyTorch's): these
have no level. Two messages that ran together in one line can't be told apart; they are counted and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from scalewright.diagnose.traces.unpack import Unpacked

LEVELS = {word.encode(): word for word in ("INFO", "WARN", "ABORT", "ERROR", "VERSION", "TRACE")}
LONGEST = 8192  # bytes of a line that are looked at: NCCL cuts its own at 1,024 for most, 4,096 for some
HEAD = 400  # characters before the level: a host's name has at most 253
MARKS = (b"CCL", b"nccl")
COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
# The look-behind lets the search start at words only: without it a long word would cost its square.
SOURCE = re.compile(r"(?<![\w.\-])([\w.\-]+)(?::(\d+):\d+)? \[([^\[\]]{0,32})\](?: \S+)?$")
# A line of NCCL's, not its library, which holds `[%d] NCCL INFO ` among its strings.
WRITTEN = re.compile(rb"\[[\w \-]{0,32}\](?: \S{1,300})? NCCL (?:INFO|WARN) ")
BINARY = 512  # bytes: a null byte within is no text's
SOURCES = 50_000  # heads that are remembered: with a time in each, no two lines have the same


class Source(NamedTuple):
    """Who wrote a line: a GPU of a process. Fields that the line doesn't have are empty."""

    host: str = ""
    pid: str = ""
    device: str = ""


class Line(NamedTuple):
    """A line of NCCL's; `level` is empty for one that only names it. `number` counts from 1."""

    number: int
    source: Source
    level: str
    text: str


NOBODY = Source()


class Lines:
    """Iterates over the lines of a file; afterwards `notes` says what couldn't be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.joined, self.damage = path, 0, ""

    def __iter__(self) -> Iterator[Line]:
        """The lines in order; raises OSError where the file can't be read."""
        for number, raw in _raw_lines(unpacked := Unpacked(self.path)):
            if (line := self._line(number, raw)) is not None:
                yield line
        self.damage = unpacked.damage

    @property
    def notes(self) -> list[str]:
        """What a reader should know about this file."""
        joined = f"{self.joined:,} lines hold two messages that ran together and were left out"
        return [self.damage] * bool(self.damage) + [joined] * bool(self.joined)

    def _line(self, number: int, raw: bytes) -> Line | None:
        raw = raw[:LONGEST]
        if b"\x1b" in raw:
            raw = COLOUR.sub(b"", raw)
        head, _, rest = raw.partition(b" NCCL ")
        word, _, text = rest.partition(b" ")
        level = LEVELS.get(word)
        if level is None:
            return Line(number, NOBODY, "", raw.decode("utf-8", "replace").strip())
        if b" NCCL " in text and (b" NCCL INFO " in text or b" NCCL WARN " in text):
            self.joined += 1
            return None
        return Line(number, _source(head[-HEAD:]), level, text.decode("utf-8", "replace").strip())


@lru_cache(maxsize=SOURCES)
def _source(head: bytes) -> Source:
    match = SOURCE.search(head.decode("utf-8", "replace"))
    return Source(*match.groups("")) if match else NOBODY


def _raw_lines(pieces: Unpacked) -> Iterator[tuple[int, bytes]]:
    """The lines that name NCCL, with their numbers; of a line longer than a piece of the file, its parts."""
    number, rest = 0, b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for number, line in enumerate(whole, number + 1):  # noqa: B020 - goes on where the last piece ended
            if MARKS[0] in line or MARKS[1] in line:
                yield number, line
        if len(rest) > pieces.chunk:
            rest = rest[-LONGEST:]
    if any(mark in rest for mark in MARKS):
        yield number + 1, rest


def is_nccl_log(path: Path, within: int = 64 << 20) -> bool:
    """Whether NCCL wrote a line in the first `within` bytes; with a null byte at its start it is no log."""
    read, end = 0, b""
    for piece in Unpacked(path):
        if not read and b"\0" in piece[:BINARY]:
            return False
        if WRITTEN.search(end + piece):
            return True
        read, end = read + len(piece), piece[-LONGEST:]
        if read >= within:
            break
    return False
