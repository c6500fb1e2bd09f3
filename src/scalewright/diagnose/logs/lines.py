"""The lines of a log in which a mark occurs, of a file of any size, in bounded memory.

    8 MiB ──► find(mark) for each mark ──► the line around each place ──► without colours, with its source

Most lines of a log are no step's. Splitting 100 MB into lines and looking at each costs seconds; a search of the bytes
for some words costs less, so that nothing is split but the lines in which a mark was found. From those come numbers, as
trainers print them, and pairs of a key and a value:

    6,344     8.79K     1.087129E+01     68.57GiB(86.69%)     nan          number(...)
    lm loss: 1.0E+01 | grad norm: 0.5 |      {'loss': 2.09, 'epoch': 0.44}      loss: 12.3  tps: 6,344

Every pattern is bounded or has one way to match, so that no line costs more than its length.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from scalewright.diagnose.nccl.lines import BINARY, COLOUR
from scalewright.diagnose.traces.unpack import Unpacked

LONGEST = 1 << 15  # bytes of a line that are looked at: a command line with all its flags is shorter
# Whose line it is: srun's task number, mpirun's, a launcher's `[rank0]:` or `[default0]:`, `job/0 `.
SOURCE = re.compile(r"(?:\[\d{1,6},\d{1,6}\]<std\w{3}>: ?|\d{1,6}: |\[(?:rank|default)\d{1,6}\]: ?|\S{1,40}/\d{1,6} )*")
BEGINS = frozenset("[0123456789")  # its first characters, but for `job/0 `'s


class Line(NamedTuple):
    """A line without colours; `source` is what stands before it, such as `1: [rank0]:`."""

    source: str
    text: str


class MarkedLines:
    """Iterates over a file's marked lines; afterwards `damage` is empty or why it ended early."""

    def __init__(self, path: Path, marks: Sequence[str], most: int | None = None) -> None:
        self.path, self.most, self.damage = path, most, ""
        self.marks = tuple(dict.fromkeys(mark.encode() for mark in marks))

    def __iter__(self) -> Iterator[Line]:
        """Lines in order, those of the first `most` bytes; raises OSError where the file can't be read."""
        unpacked, rest, read = Unpacked(self.path), b"", 0
        for piece in unpacked:
            data = rest + piece
            end = data.rfind(b"\n") + 1
            yield from _marked(data[:end], self.marks)
            rest = data[end:] if len(data) - end <= unpacked.chunk else data[-LONGEST:]
            read += len(piece)
            if self.most is not None and read >= self.most:
                break
        yield from _marked(rest, self.marks)
        self.damage = unpacked.damage


def _marked(data: bytes, marks: Sequence[bytes]) -> Iterator[Line]:
    """The lines of some bytes that hold one of the marks, in order."""
    spans: dict[int, int] = {}
    remaining = [(0, len(data))]  # pieces in which the other marks are looked for
    for mark in marks:
        count = len(spans)
        for begin, stop in remaining:
            place = data.find(mark, begin, stop)
            while place >= 0:
                end = data.find(b"\n", place)
                end = end if end >= 0 else len(data)
                spans[data.rfind(b"\n", 0, place) + 1] = end
                place = data.find(mark, end, stop)
        if len(spans) > count and 4 * sum(end - start for start, end in spans.items()) >= 3 * len(data):
            starts = sorted(spans)  # most of it: what is left lies between the lines; 1 is a line's end
            gaps = zip([0, *(spans[start] for start in starts)], [*starts, len(data)], strict=True)
            remaining = [(end, start) for end, start in gaps if start - end > 1]
    for start in sorted(spans):
        raw = data[start : spans[start]].rstrip(b"\r")
        if b"\r" not in raw:
            yield _line(raw)
        else:  # a progress bar writes over itself
            yield from (_line(part) for part in raw.split(b"\r") if any(mark in part for mark in marks))


def _line(raw: bytes) -> Line:
    raw = raw[:LONGEST]
    if b"\x1b" in raw:
        raw = COLOUR.sub(b"", raw)
    text = raw.decode("utf-8", "replace")
    if text[:1] not in BEGINS and "/" not in text[:41]:
        return Line("", text)
    end = match.end() if (match := SOURCE.match(text)) else 0
    return Line(text[:end], text[end:])


def is_text(path: Path) -> bool:
    """Whether the file begins as a text does: in UTF-8, without a null byte."""
    start = next(iter(Unpacked(path)), b"")[:BINARY]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and "\0" not in text


NUMBER = re.compile(r"[-+]?(?:\d[\d,]{0,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)\b", re.I)
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
QUOTED = re.compile(r"['\"]([\w/]{1,80})['\"]: ['\"]?([-+]?[\w.]{1,40}(?:[-+]\d{1,4})?)")
WORDS = re.compile(r"([A-Za-z][\w/]{0,60}(?: in s)?)\s{0,4}[:=]\s{0,4}([-+]?[\w.,]{1,40}(?:[-+]\d{1,4})?)")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d(?:[.,]\d{1,6})?)")  # ISO 8601, Python's logging


def number(text: str, units: bool = False) -> float | None:
    """The number that a text begins with; `units` reads K, M, B and T behind it as powers of 1,000.

    >>> number("6,344"), number("8.79K", units=True), number("68.57GiB(87%)"), number("n/a")
    (6344.0, 8790.0, 68.57, None)
    """
    try:
        return float(text)  # most are plain, and the pattern costs four times as much
    except ValueError:
        text = text.strip()
        match = NUMBER.match(text)
    if match is None:
        return None
    value = float(match[0].replace(",", ""))
    return value * UNITS.get(text[match.end() : match.end() + 1], 1.0) if units else value


def real(value: object) -> float | None:
    """A number of a JSON document as a float; None for anything else, and for one that no float holds.

    >>> real(2), real(True), real("2"), real(10**400)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def barred(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `key: value | key: value |`; a key may hold words, brackets and slashes."""
    for part in text.split("|"):
        key, colon, value = part.rpartition(": ")
        if colon:
            yield key.strip(), value


def quoted(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of a Python dictionary or a JSON object that is printed on one line."""
    return ((match[1], match[2]) for match in QUOTED.finditer(text))


def words(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `key: value  key: value` and `key=value, key=value`; a key is a word."""
    return ((match[1], match[2]) for match in WORDS.finditer(text))


def clock(text: str) -> float | None:
    """The first date and time of a line in seconds since 1970, as if it were UTC; None where it has none."""
    match = STAMP.search(text, 0, 300)
    minute = _minute(match[1]) if match else None
    return minute + float(match[2].replace(",", ".")) if match and minute is not None else None


@lru_cache(maxsize=64)
def _minute(text: str) -> float | None:
    """Seconds since 1970 at `2026-11-23 17:05`; None for one that no calendar has."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    return None
