"""The events of a JSON trace, a piece at a time, and what stands around them.

    {"schemaVersion": 1, ..., "traceEvents": [ {..}, {..} , {..}, {..} , {..} ], "traceName": ...}
     ───────────── head ───────────────────── ─ chunk ───── ─ chunk ─────────── ─── tail ───────
                                                         cut between two objects: `}` `,` `{`

A cut is looked for from the end of what was read; one inside an event (a list of objects among its arguments) doesn't
decode, and the one before is tried. Where the fault is in the text itself, the events before it are kept, the place is
judged (the array's end, a control character, rubbish, the end of a file that was cut off), and reading goes on behind
it. Nothing raises for damage; `damage` holds a line for each kind of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

Event = TypeVar("Event")

ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")  # PyTorch 1.8 and other profilers: a list and nothing else
END = re.compile(rb"\s*\]")
NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id)")')  # where an event begins, after damage
BETWEEN = re.compile(rb"\}\s*,\s*\{")
FOLLOWED = re.compile(rb"\s*[,\]]")
FAULT = re.compile(r"\(byte (\d+)\)")
SEPARATORS = b", \t\r\n"
HEAD_LIMIT = 64 << 20  # bytes before the array begins
TRIED = 32  # places at which a chunk may be cut, from its end

NOT_A_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
CONTROL = bytes(code for code in range(32) if code not in b"\t\n\r")
BLANKS = bytes.maketrans(CONTROL, b" " * len(CONTROL))


class NotATrace(ValueError):
    """The file has no list of events."""


class EventArray(Generic[Event]):
    """Iterates over lists of decoded events; `outside` and `damage` are complete when it has ended.

    pieces   the file's bytes, in pieces of any length
    decode   `[{..}, {..}]` to events; raises msgspec.DecodeError for what isn't JSON, and nothing for types
    """

    def __init__(self, pieces: Iterable[bytes], decode: Callable[[bytes], list[Event]]) -> None:
        self.pieces, self.decode = iter(pieces), decode
        self.outside: dict[str, object] = {}
        self.damage: list[str] = []
        self._ended = False
        self._lost = self._repaired = 0

    def __iter__(self) -> Iterator[list[Event]]:
        """Raises NotATrace where the file has no array of events."""
        head, text = self._head()
        while not self._ended:
            piece = next(self.pieces, None)
            text, again = text + (piece or b""), True
            while again and not self._ended:
                events, text, again = self._take(text, last=piece is None)
                if events:
                    yield events
            if piece is None:
                break
        self._read_around(head, text + b"".join(self.pieces))
        if not self._ended:
            self.damage.append("it ends before its list of events does: the file was cut off")
        if self._repaired:
            self.damage.append("characters that JSON doesn't allow were replaced")
        if self._lost:
            self.damage.append(f"{self._lost:,} bytes of its events can't be read and were left out")

    def _head(self) -> tuple[bytes, bytes]:
        """The text before the array with its bracket, and the text after."""
        text = b""
        for piece in self.pieces:
            text += piece
            if bare := BARE.match(text):
                return b'{"traceEvents": [', text[bare.end() :]
            if start := ARRAY.search(text):
                return text[: start.end()], text[start.end() :]
            if len(text) > HEAD_LIMIT:
                break
        raise NotATrace("it has no list of traceEvents")

    def _take(self, text: bytes, last: bool) -> tuple[list[Event], bytes, bool]:
        """Events from the start of `text`, the text after them, and whether that may hold more already."""
        text = text.lstrip(SEPARATORS)
        for cut in [len(text)] * last or _cuts(text):
            try:
                return self.decode(b"[" + text[:cut] + b"]"), text[cut:], False
            except UnicodeDecodeError:
                self._repaired += 1
                return [], text.decode("utf-8", "replace").encode(), True
            except RecursionError:
                return self._take_before(text, 0, last)
            except msgspec.DecodeError as error:
                if place := FAULT.search(str(error)):
                    return self._take_before(text, int(place[1]) - 1, last)
        return self._take_before(text, len(text), last) if last else ([], text, False)

    def _take_before(self, text: bytes, fault: int, last: bool) -> tuple[list[Event], bytes, bool]:
        """The same of a text that doesn't decode at byte `fault`."""
        events, good = self._last_good(text, fault)
        rest = text[good:]
        if end := END.match(rest):
            self._ended = True
            return events, rest[end.end() :], False
        if events:
            return events, rest, True
        repaired = NOT_A_NUMBER.sub(rb"\1null", rest.translate(BLANKS))
        if repaired != rest:
            self._repaired += 1
            return [], repaired, True
        if following := NEXT.search(rest, fault):
            self._lost += following.end()
            return [], rest[following.end() :], True
        if last:
            self._lost += len(rest)
            return [], b"", False
        return [], rest, False

    def _last_good(self, text: bytes, fault: int) -> tuple[list[Event], int]:
        """The events that end before `fault`, and where the last of them ends."""
        place = min(fault + 1, len(text))
        for _ in range(TRIED):
            place = text.rfind(b"}", 0, place)
            if place < 0:
                break
            if FOLLOWED.match(text, place + 1):
                try:
                    return self.decode(b"[" + text[: place + 1] + b"]"), place + 1
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
        return [], 0

    def _read_around(self, head: bytes, tail: bytes) -> None:
        """Fills `outside` with the keys before and after the array; those before it alone, if need be."""
        for text in (head + b"]}", head + b"]" + (tail if tail.strip() else b"}")):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.outside = msgspec.json.decode(text, type=dict[str, object])
        self.outside.pop("traceEvents", None)


def _cuts(text: bytes) -> Iterator[int]:
    """Places after a `}` that a comma and a `{` follow, from the end; `TRIED` at most."""
    place, count = len(text), 0
    while count < TRIED and (place := text.rfind(b"}", 0, place)) >= 0:
        if BETWEEN.match(text, place):
            count += 1
            yield place + 1
