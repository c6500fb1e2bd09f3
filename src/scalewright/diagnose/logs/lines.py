"""The lines of a log in which a mark occurs, of a file of any size, in bounded memory.

    8 MiB ──► places of the marks, all at once ──► the line around each ──► without colours, with its source

Most lines of a log are no step's. Splitting 100 MB into lines and looking at each costs seconds, and so does a search
for each of 150 marks; one search of the bytes for all of them costs less, and nothing is split but the lines in which a
mark was found. From those come numbers, as trainers print them, and pairs of a key and a value:

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

import numpy as np

from scalewright.diagnose.nccl.lines import BINARY, COLOUR
from scalewright.diagnose.traces.unpack import Unpacked

GRAM, BLOCK = 4, 1 << 18  # bytes: of a word that are looked for; that are in memory as numbers together
RARE = b",/=vbywgpf-.:9876543210mucdlhrsnioate "  # bytes of logs, from those that are seldom; others are more so
COMMON = b" consumed samples: learning rate: global batch size: number of skipped iterations: training NCCL memory "
LONGEST = 1 << 15  # bytes of a line that are looked at: a command line with all its flags is shorter
# Whose line it is: srun's task number, mpirun's, a launcher's `[rank0]:` or `[default0]:`, `job/0 `.
SOURCE = re.compile(
    r"(?:\[\d{1,6},\d{1,6}\]<std\w{3}>: ?|\d{1,6}: |\[(?:rank|default)\d{1,6}\]: ?|[^\d\s:=][^\s:=]{0,39}/\d{1,6} )*"
)
BEGINS = frozenset("[0123456789")  # its first characters, but for `job/0 `'s
# tqdm's bars one after another, of which each repeats the one before: `  1%|▏   | 24/1752 [01:04<1:22:08,  2.88s/it]`.
BARS = re.compile(
    rb"(?:[\r\n]+(?:\w{1,20}(?: \d{1,9})?:)? {0,9}\d{1,3}%\|[^|\r\n]{0,90}\| {0,9}\d{1,12}/\d{1,12} "
    rb"\[[\d:]{4,12}<[\d:?]{1,12}, {1,4}(?=[\d.]{0,9}[1-9])\d{1,9}(?:\.\d{1,6})?(?:s/it|it/s)\](?=[\r\n]|\Z))+"
)


class Line(NamedTuple):
    """A line without colours; `source` is what stands before it, such as `1: [rank0]:`."""

    source: str
    text: str


class MarkedLines:
    """Iterates over a file's marked lines; afterwards `damage` is empty or why it ended early."""

    def __init__(self, path: Path, marks: Sequence[str], most: int | None = None) -> None:
        self.path, self.most, self.damage = path, most, ""
        self.search = _search(tuple(dict.fromkeys(marks)))

    def __iter__(self) -> Iterator[Line]:
        """Lines in order, those of the first `most` bytes; raises OSError where the file can't be read."""
        unpacked, rest, read = Unpacked(self.path), b"", 0
        for piece in unpacked:
            data = rest + piece
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            yield from _marked(data[:end], self.search)
            rest = data[end:] if len(data) - end <= unpacked.chunk else data[-LONGEST:]
            read += len(piece)
            if self.most is not None and read >= self.most:
                break
        yield from _marked(rest, self.search)
        self.damage = unpacked.damage


class Search:
    """Where one of many words occurs: one pass over the bytes, whatever the number of words.

    Each word is looked for by four of its bytes, its rarest by RARE. A table of 65,536 has their hashes; of the bytes
    that hit it (a few of a thousand by chance) the whole word is compared. A word has four bytes or more.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self.table = np.zeros(1 << 16, dtype=bool)
        self.words: dict[int, list[tuple[int, bytes]]] = {}  # hash -> where its bytes begin in the word, the word
        for word in words:
            grams = [word[at : at + GRAM] for at in range(len(word) - GRAM + 1)]
            at = min(range(len(grams)), key=lambda at: (grams[at] in COMMON, sum(map(RARE.find, grams[at]))))
            (key,) = self._hashes(word[at : at + GRAM])
            self.table[key] = True
            self.words.setdefault(int(key), []).append((at, word))

    @staticmethod
    def _hashes(data: bytes) -> np.ndarray:
        """Of each four bytes, one after another."""
        grams = np.frombuffer(data, dtype="<u4", count=len(data) // GRAM)
        return np.asarray((grams * np.uint32(0x9E3779B1)) >> np.uint32(16))

    def places(self, data: bytes) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Where a word may be, in order, with the words that it may be."""
        for start in range(0, len(data), BLOCK):
            stop = start + BLOCK + GRAM - 1
            hits: list[tuple[int, int]] = []
            for shift in range(GRAM):
                hashes = self._hashes(data[start + shift : stop])
                (found,) = np.nonzero(self.table[hashes])
                hits += zip((start + shift + GRAM * found).tolist(), hashes[found].tolist(), strict=True)
            for place, key in sorted(hits):
                yield place, self.words[key]


@lru_cache(maxsize=8)
def _search(words: tuple[str, ...]) -> Search:
    return Search([word.encode() for word in words])


def _marked(data: bytes, search: Search) -> Iterator[Line]:
    """The lines of some bytes that hold one of the marks, in order; a progress bar's `\r` ends a line, too."""
    end = 0  # of the last line; what comes before it isn't looked at again
    for place, words in search.places(data):
        if place < end or not any(data.startswith(word, place - at) for at, word in words if place - at >= end):
            continue
        start = 1 + max(data.rfind(b"\n", end, place), data.rfind(b"\r", end, place), end - 1)
        end = data.find(b"\n", place)
        end = end if end >= 0 else len(data)
        bar = data.find(b"\r", place, end)
        end = bar if bar >= 0 else end
        if data.endswith(b"]", start, end) and start and (bars := BARS.match(data, start - 1)):
            end = bars.end()  # the last bar has what all of them have
            start = 1 + max(data.rfind(b"\n", start, end), data.rfind(b"\r", start, end), start - 1)
        yield _line(data[start:end])


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
QUOTED = re.compile(r"['\"]([\w/()]{1,80})['\"]: ['\"]?([-+]?[\w.]{1,40}(?:[-+]\d{1,4})?)")
WORDS = re.compile(r"([A-Za-z][\w/]{0,60}(?: in s)?)\s{0,4}[:=]\s{0,4}([-+]?[\w.,]{1,40}(?:[-+]\d{1,4})?)")
OTHER_STAMP = re.compile(r"\W{0,4}(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d):(\d\d)")  # month, day: nanotron, transformers
ELAPSED = re.compile(r"elapsed_time['\"]: ['\"](?:(\d{1,5}) days?, )?(\d{1,4}):(\d\d):(\d\d)")
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
    if match is None and (match := OTHER_STAMP.match(text)):
        minute = _minute(f"{match[3]}-{match[1]}-{match[2]} {match[4]}")
        return minute + float(match[5]) if minute is not None else None
    minute = _minute(match[1]) if match else None
    return minute + float(match[2].replace(",", ".")) if match and minute is not None else None


def elapsed(text: str) -> float | None:
    """Seconds since the start, as Python prints them: `"elapsed_time": "1 day, 0:01:29"`."""
    match = ELAPSED.search(text)
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups()) if match else (0, 0, 0, 0)
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds if match else None


@lru_cache(maxsize=64)
def _minute(text: str) -> float | None:
    """Seconds since 1970 at `2026-11-23 17:05`; None for one that no calendar has."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    return None
