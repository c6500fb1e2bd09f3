"""The work of `prepare`, cut into pieces before it starts: the same for the same inputs and any workers.

    big file      ├─ piece 0 ─┼─ piece 1 ─┼─ piece 2 ─┤    ranges of bytes; a cut moves to a safe place
    small files   a b c d e f g h │ i j k l m n │ …        several files a piece

One piece becomes one file of tokens in each split. Its size follows from the total, never from the number of workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scalewright.data.inputs import InputFile
from scalewright.spec.errors import UserError

_PIECES = 256  # about as many, unless that makes them smaller or larger than:
_SMALLEST, _LARGEST = 1 << 20, 256 << 20
# Of so few files of plain text the end of each validates: too few documents are there to choose from.
_FEW_FILES = 100


@dataclass(frozen=True)
class Part:
    """A range of one file. Its unit is bytes (text, jsonl) or row groups (parquet).

    `opens` and `closes`: the range starts or ends where a document does; elsewhere the reader looks for a safe cut.
    """

    file: InputFile
    start: int
    stop: int
    size: int  # bytes on disk, for progress
    opens: bool = True
    closes: bool = True
    split: str | None = None  # None: each document is put in a split by its content


@dataclass(frozen=True)
class Piece:
    """One unit of work, with its place in the order."""

    number: int
    parts: tuple[Part, ...]
    size: int  # bytes on disk, for progress


def cut_pieces(files: Sequence[InputFile], valid_fraction: float) -> list[Piece]:
    """All pieces, in order. With few plain-text files, the last `valid_fraction` of each validates."""
    target = min(max(sum(file.size for file in files) // _PIECES, _SMALLEST), _LARGEST)  # bytes of a piece
    by_tail = bool(valid_fraction) and _end_validates(files)
    pieces: list[Piece] = []
    waiting: list[Part] = []
    weight = 0

    def close(parts: list[Part]) -> None:
        if parts:
            pieces.append(Piece(len(pieces), tuple(parts), sum(part.size for part in parts)))

    for file in files:
        for part in _parts(file, target, valid_fraction if by_tail else 0.0):
            large = part.size >= target // 2  # a piece of its own
            if not large:
                waiting.append(part)
                weight += part.size
            if large or weight >= target:
                close(waiting)
                close([part] if large else [])
                waiting, weight = [], 0
    close(waiting)
    return pieces


def plan_key(files: Sequence[InputFile], options: dict[str, object]) -> str:
    """A name for this very work: other inputs or other options have another one."""
    described = [[file.name, file.kind, file.size, file.stamp, file.split] for file in files]
    text = json.dumps([options, described], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _end_validates(files: Sequence[InputFile]) -> bool:
    """Whether all inputs are a few long documents: plain text files without separators, not compressed."""
    texts = [file for file in files if file.split is None]
    if len(texts) > _FEW_FILES or any(file.kind != "text" or file.compressed for file in texts):
        return False
    return not any(_has_separator(file) for file in texts)


def _has_separator(file: InputFile) -> bool:
    kept = b""
    with open(file.path, "rb") as stream:
        while block := stream.read(1 << 22):
            if b"<|endoftext|>" in kept + block:
                return True
            kept = block[-16:]
    return False


def _parts(file: InputFile, target: int, tail: float) -> list[Part]:
    if file.kind == "parquet":
        return _row_groups(file, target)
    if file.compressed or file.kind == "wikitext":
        return [Part(file, 0, file.size, file.size, split=file.split)]
    if tail and file.split is None:
        cut = _character_start(file, int(file.size * (1 - tail)))
        spans = [(0, cut, "train"), (cut, file.size, "valid")]
        return [part for start, stop, split in spans for part in _ranges(file, start, stop, target, split)]
    return _ranges(file, 0, file.size, target, file.split)


def _ranges(file: InputFile, start: int, stop: int, target: int, split: str | None) -> list[Part]:
    """A span in ranges of equal size, none much larger than the target."""
    if stop <= start:
        return []
    count = max(1, round((stop - start) / target))
    bounds = pairwise(start + (stop - start) * number // count for number in range(count + 1))
    return [Part(file, first, last, last - first, first == start, last == stop, split) for first, last in bounds]


def _character_start(file: InputFile, byte: int) -> int:
    with open(file.path, "rb") as stream:
        stream.seek(max(byte - 3, 0))
        window = stream.read(byte - max(byte - 3, 0) + 1)
    while byte > 0 and window and window[-1] & 0xC0 == 0x80:
        window, byte = window[:-1], byte - 1
    return byte


def _row_groups(file: InputFile, target: int) -> list[Part]:
    """Runs of row groups of about `target` bytes; raises UserError when the file isn't parquet."""
    import pyarrow
    import pyarrow.parquet

    try:
        meta = pyarrow.parquet.ParquetFile(file.path).metadata
    except (pyarrow.ArrowInvalid, OSError) as error:
        how = "write it again"
        raise UserError(f"not a readable parquet file: {str(error).splitlines()[0]}", file.path, how) from None
    groups = meta.num_row_groups
    step, weight = max(1, round(target * groups / file.size)), file.size // max(groups, 1)
    spans = [(start, min(start + step, groups)) for start in range(0, groups, step)]
    return [Part(file, start, stop, weight * (stop - start), split=file.split) for start, stop in spans]
