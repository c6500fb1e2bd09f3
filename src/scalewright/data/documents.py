"""The text of a part of the input, in chunks of bounded size: no file, however large, is held in memory.

A document comes as one or more fragments of about a megabyte, which end where words of most tokenizers
end, if there is such a place; `seams.py` mends other cuts:

    … the lobsters are blue| , only becoming …       before a space that follows something that isn't one,
    … a claw|\\n\\n= Habitat = …                        or before a line end that follows a letter or digit

(the words of GPT-2's and GPT-4's patterns take a space at their front, and line ends only after punctuation).
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

from scalewright.data.inputs import BadLines, InputFile
from scalewright.data.pieces import Part
from scalewright.spec.common.untrusted import parse_json
from scalewright.spec.errors import UserError, nearest

FRAGMENT = 1 << 20  # bytes read at a time, and the longest text that is mostly tokenized at once
OVERLAP = 4096  # characters beyond a cut that are tokenized with a fragment
SEPARATOR = "<|endoftext|>"

REPAIRED = {
    "cut": "documents cut into pieces",
    "seams": "cuts where a token may differ",
    "bytes": "files with bytes that aren't UTF-8",
    "characters": "documents with broken characters",
}
"""Documents and files that are taken after a repair, and counted; the rest of the notes is left out."""
IN_FILE = f"{REPAIRED['bytes']}: "  # before a file's path: of several parts it is one

_DAMAGED = (EOFError, OSError, zlib.error)  # raised for a cut or altered .gz or .zst, or by a failing disk
_SAFE = re.compile(rb"(?<=[^\s])(?= )|(?<=[0-9A-Za-z])(?=\r?\n)")
SAFE_TEXT = re.compile(r"(?<=\S)(?= )|(?<=[0-9A-Za-z])(?=\r?\n)")
_NEARBY = 4096  # where a safe cut is looked for first
_ARTICLE = re.compile(r"(?:\A \n|(?<=\n \n)) = [^=\n].* = (?=\n \n)")  # a title stands between blank lines


@dataclass
class Fragment:
    """Some text of a document: `opens` when it is its first, `closes` when the document ends with it.

    Where a part of a file begins or ends within a document: the document's text `before`, and `after`.
    """

    text: str
    opens: bool = True
    closes: bool = True
    before: str = ""
    after: str | None = None


def fragments(part: Part, text_key: str, notes: Counter[str], skip_bad: bool = False) -> Iterator[Fragment]:
    """The text of a part, in order; repairs are counted in `notes`. Raises UserError.

    `skip_bad` leaves out lines of JSON that hold no text, and lists them in `notes` (`BadLines`).
    """
    if part.file.kind == "jsonl":
        return _json_lines(part, text_key, notes, skip_bad)
    read = {"text": _text, "parquet": _parquet, "wikitext": _articles}[part.file.kind]
    return read(part, text_key, notes)


def open_bytes(file: InputFile) -> IO[bytes]:
    """A file's bytes, decompressed; raises UserError when its name has the wrong suffix."""
    if file.path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(file.path, "rb"))
    if file.path.endswith(".zst"):
        import pyarrow

        stream = pyarrow.input_stream(file.path, compression="zstd")
        return io.BufferedReader(stream, FRAGMENT)  # for readline, which pyarrow's streams lack
    return open(file.path, "rb")


def _blocks(stream: IO[bytes], start: int, stop: int | None, file: InputFile) -> Iterator[bytes]:
    """Bytes start..stop of a stream, a megabyte at a time; `stop` None reads to the end."""
    if stop is not None:  # compressed streams are read from where they are: the beginning
        stream.seek(start)
    left = stop - start if stop is not None else None
    while left is None or left > 0:
        try:
            block = stream.read(FRAGMENT if left is None else min(FRAGMENT, left))
        except _DAMAGED as error:
            raise _unreadable(file, error) from None
        if not block:
            return
        if left is not None:
            left -= len(block)
        yield block


def _unreadable(file: InputFile, error: BaseException) -> UserError:
    return UserError(f"cannot read on: {error}", file.path, "copy the file again, or leave it out")


def _text(part: Part, text_key: str, notes: Counter[str]) -> Iterator[Fragment]:
    with open_bytes(part.file) as stream:
        start, stop = part.start, None if part.file.compressed else part.stop
        if not part.opens:
            start = _cut_from(stream, start, part.file.size)
        if not part.closes:
            stop = _cut_from(stream, part.stop, part.file.size)
        before = "" if part.opens else _around(stream, start, -1)
        after = None if part.closes else _around(stream, stop or 0, 1)
        replaced, opens = False, part.opens
        pending: Fragment | None = None
        for number, piece in enumerate(_safe_pieces(_blocks(stream, start, stop, part.file))):
            try:
                text = piece.decode()
            except UnicodeDecodeError:
                text, replaced = piece.decode(errors="replace"), True
            if number == 0 and start == 0:
                text = text.removeprefix("\ufeff")  # a byte order mark
            for index, section in enumerate(text.split(SEPARATOR)):
                if pending is not None:
                    pending.closes = index > 0
                    yield pending
                pending = Fragment(section, opens=opens or index > 0, before=before)
                opens, before = False, ""
        if pending is not None:
            pending.closes, pending.after = part.closes, after
            notes[REPAIRED["cut"]] += not part.closes
            yield pending
    notes.update([f"{IN_FILE}{part.file.path}"] * replaced)


def _around(stream: IO[bytes], cut: int, side: int) -> str:
    """A document's text before (side -1) or after (1) a cut."""
    stream.seek(max(cut - 4 * OVERLAP, 0) if side < 0 else cut)
    text = stream.read(min(4 * OVERLAP, cut) if side < 0 else 4 * OVERLAP).decode(errors="replace")
    if side > 0:
        return text.partition(SEPARATOR)[0][:OVERLAP]
    text = text.removeprefix("\ufeff") if cut <= 4 * OVERLAP else text
    return text.rpartition(SEPARATOR)[2][-OVERLAP:]


def _safe_pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, cut again where no word is."""
    kept = b""
    for block in blocks:
        kept += block
        if len(kept) < FRAGMENT:
            continue
        if cut := _last_cut(kept):
            yield kept[:cut]
            kept = kept[cut:]
    if kept:
        yield kept


def _last_cut(data: bytes) -> int:
    """The last safe place in `data`; if there is none the last line end, else the last character's start."""
    for start in (max(len(data) - _NEARBY, 1), 1):
        cuts = [match.start() for match in _SAFE.finditer(data, start)]
        if cuts:
            return cuts[-1]
    if (line := data.rfind(b"\n")) > 0:
        return line
    cut = max(len(data) - len(SEPARATOR), 0)
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return _beside_separator(data, cut)


def _beside_separator(data: bytes, cut: int) -> int:
    """The cut, moved to the front of a separator that it would divide."""
    length = len(SEPARATOR)
    first = data.find(SEPARATOR.encode(), max(cut - length + 1, 0), cut + length - 1)
    return (first or length) if 0 <= first < cut else cut


def _cut_from(stream: IO[bytes], start: int, size: int) -> int:
    """The first safe place from `start` on: where one range of a file ends and the next begins."""
    origin = max(start - len(SEPARATOR), 0)
    stream.seek(origin)
    window = stream.read(FRAGMENT + start - origin)
    if cut_match := _SAFE.search(window, start - origin + 1):
        return origin + cut_match.start()
    if (line := window.find(b"\n", start - origin + 1)) > 0:
        return origin + line
    cut = start - origin
    while cut < len(window) and window[cut] & 0xC0 == 0x80:
        cut += 1
    return min(origin + _beside_separator(window, cut), size)


def _articles(part: Part, text_key: str, notes: Counter[str]) -> Iterator[Fragment]:
    with open(part.file.path, encoding="utf-8", newline="") as file:
        text = file.read()
    starts = sorted({0, *(match.start() for match in _ARTICLE.finditer(text))})
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        yield from whole(text[start:stop])


def whole(text: str) -> Iterator[Fragment]:
    """A document that is already in memory, in fragments."""
    start = 0
    while len(text) - start > FRAGMENT:
        cut = start + FRAGMENT
        cuts = [match.start() for match in SAFE_TEXT.finditer(text, max(cut - _NEARBY, start + 1), cut)]
        cut = cuts[-1] if cuts else cut
        yield Fragment(text[start:cut], opens=start == 0, closes=False)
        start = cut
    yield Fragment(text[start:], opens=start == 0)


def _json_lines(part: Part, text_key: str, notes: Counter[str], skip_bad: bool) -> Iterator[Fragment]:
    with open_bytes(part.file) as stream:
        position = part.start
        if position:  # a line is of the range in which it starts
            stream.seek(position - 1)
            position += len(stream.readline()) - 1
        lines = BadLines(part.file.path, partial(_lines_before, part.file, position), skip_bad, notes)
        while part.file.compressed or position < part.stop:
            try:
                line = stream.readline()
            except _DAMAGED as error:
                raise _unreadable(part.file, error) from None
            if not line:
                return
            line_start = position
            position += len(line)
            if line.strip():
                try:
                    record = _record(line, text_key)
                except UserError as error:
                    lines.bad(line_start, error)
                else:
                    yield from _value(record, text_key, part.file.path, notes)
            lines.passed += 1


def _lines_before(file: InputFile, byte: int) -> int:
    with open_bytes(file) as stream:
        left, lines = byte, 0
        while left > 0 and (block := stream.read(min(FRAGMENT, left))):
            lines += block.count(b"\n")
            left -= len(block)
    return lines


def _record(line: bytes, text_key: str) -> Any:
    """A JSON line's value under the key; raises UserError for a line that has no text there."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"not JSON, {error}") from None
    if not isinstance(record, dict) or text_key not in record:
        keys = list(record) if isinstance(record, dict) else []
        near = nearest(text_key, keys) or keys[:5]
        fix = f"name the key with --text-key, such as {near[0]}" if near else "each line should be an object"
        raise UserError(f"no key '{text_key}' in a record", "", fix)
    value = record[text_key]
    if value is not None and not isinstance(value, str):
        raise _no_text(text_key, value, "")
    return value


def _no_text(text_key: str, value: Any, path: str) -> UserError:
    return UserError(f"'{text_key}' holds {type(value).__name__}, not text", path, "name another with --text-key")


def _value(value: Any, text_key: str, path: str, notes: Counter[str]) -> Iterator[Fragment]:
    if value is None:
        notes["empty documents"] += 1
        return
    if not isinstance(value, str):
        raise _no_text(text_key, value, path)
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON may escape half a surrogate pair
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        notes[REPAIRED["characters"]] += 1
    yield from whole(value)


def _parquet(part: Part, text_key: str, notes: Counter[str]) -> Iterator[Fragment]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(part.file.path)
        columns = file.schema_arrow.names
        if text_key not in columns:
            near = nearest(text_key, columns) or columns[:5]
            raise UserError(f"no column '{text_key}'", part.file.path, f"name it with --text-key, such as {near[0]}")
        groups = list(range(part.start, part.stop))
        for batch in file.iter_batches(batch_size=256, row_groups=groups, columns=[text_key]):
            for value in batch.column(0).to_pylist():
                yield from _value(value, text_key, part.file.path, notes)
    except (pyarrow.ArrowInvalid, OSError) as error:
        how = "write the file again"
        raise UserError(f"cannot read on: {str(error).splitlines()[0]}", part.file.path, how) from None
