"""One piece of the work: its text becomes token files, committed whole or not at all.

    fragments ──► half a megabyte at a time ──► tokenizer ──► train/tokens-00003.bin, valid/tokens-00003.bin
                                                              pieces/00003.train.lengths, ….valid.lengths
                                                              pieces/00003.json     last: now the piece exists

A document's split is chosen by a hash of its beginning, so equal documents never lie on both sides.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import IO

import numpy as np

from scalewright.data.documents import Fragment, fragments
from scalewright.data.inputs import COUNT
from scalewright.data.metadata import SPLITS
from scalewright.data.pieces import Part, Piece
from scalewright.data.plan import Options
from scalewright.data.seams import Seams
from scalewright.data.shards import block_checksums, checksum, commit, commit_json, shard_name
from scalewright.data.word_encoder import Int32, WordEncoder
from scalewright.spec.common.untrusted import read_json
from scalewright.spec.errors import UserError

_BATCH = 1 << 19  # characters tokenized at once: some 50 MB inside the tokenizer
_HASHED = 1 << 16  # characters of a document that choose its split


@dataclass(frozen=True)
class Encoding:
    """The settings of every piece; small, since they are sent to other processes."""

    out: str
    tokenizer: str
    eod: int
    dtype: str
    options: Options
    key: str  # names inputs, options and tokenizer: a piece of another plan isn't taken
    bos: tuple[int, ...] = ()  # before each document


_Waiting = list[tuple[str, Fragment]]  # split, and a fragment that waits to be tokenized


class _SplitWriter:
    """The token file of one piece in one split, under a temporary name until `close`."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.temporary = path, path.with_name(path.name + ".tmp")
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.lengths = array("q")
        self.text_bytes = self.tokens = 0
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def add(self, ids: Int32, text_bytes: int, opens: bool) -> None:
        """More tokens of a document; `opens` begins a new one."""
        if self._file is None:
            self.temporary.unlink(missing_ok=True)  # it may be a link
            self._file = open(self.temporary, "wb")  # noqa: SIM115 - closed by close or abandon
        data = ids.astype(self.dtype).tobytes()
        self._file.write(data)
        self._digest.update(data)
        if opens or not self.lengths:
            self.lengths.append(0)
        self.lengths[-1] += len(ids)
        self.tokens += len(ids)
        self.text_bytes += text_bytes

    def close(self) -> dict[str, object] | None:
        """Flushes and renames the file; its entry for the metadata, or None when nothing was added."""
        if self._file is None:
            self.path.unlink(missing_ok=True)
            return None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self.temporary, self.path)
        entry = {"file": self.path.name, "tokens": self.tokens, "documents": len(self.lengths)}
        entry |= {"text_bytes": self.text_bytes, "bytes": self.tokens * self.dtype.itemsize}
        return {**entry, "sha256": self._digest.hexdigest(), "block_crc32": block_checksums(self.path)}

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self.temporary.unlink(missing_ok=True)


@dataclass
class PieceWork:
    """Turns one piece into files."""

    encoding: Encoding
    encoder: WordEncoder
    advance: Callable[[int], None]
    notes: Counter[str] = field(default_factory=Counter)

    def run(self, piece: Piece) -> dict[str, object]:
        """Does the piece and commits its record, which it returns."""
        out, seams = Path(self.encoding.out), Seams(self.encoder, self.notes)
        writers = {split: _SplitWriter(out / split / shard_name(piece.number), self.encoding.dtype) for split in SPLITS}
        try:
            for batch in _batches(self._documents(piece)):
                self._encode(batch, seams, writers)
            entries = {split: writer.close() for split, writer in writers.items()}
            for split, writer in writers.items():
                lengths = np.array(writer.lengths, dtype="<i8").tobytes()
                commit(lengths_path(out, piece.number, split), [lengths])
        except BaseException:
            for writer in writers.values():
                writer.abandon()
            raise
        record = {
            "number": piece.number,
            "key": self.encoding.key,
            "splits": entries,
            "notes": dict(self.notes),  # bad lines in the order of the file
        }
        commit_json(record_path(out, piece.number), record)
        return record

    def _documents(self, piece: Piece) -> Iterator[tuple[str, Fragment]]:
        for part in piece.parts:
            before = Path(part.file.path).stat()
            if before.st_size != part.file.size:
                how = "run the command again when it is at rest"
                raise UserError("the file changed while it was read", part.file.path, how)
            reported = 0
            for split, fragment in in_splits(part, self.encoding.options, self.notes):
                yield split, fragment
                # Characters stand for bytes until the part is done.
                step = min(len(fragment.text), part.size - reported)
                reported += step
                self.advance(step)
            self.advance(part.size - reported)

    def _encode(self, batch: _Waiting, seams: Seams, writers: dict[str, _SplitWriter]) -> None:
        start, end = np.array(self.encoding.bos, np.int32), np.array([self.encoding.eod], np.int32)
        encoded = seams([fragment for _, fragment in batch])
        for (split, fragment), tokens in zip(batch, encoded, strict=True):
            around = (start[: None if fragment.opens else 0], tokens, end[: None if fragment.closes else 0])
            writers[split].add(np.concatenate(around), len(fragment.text.encode()), fragment.opens)


def in_splits(part: Part, options: Options, notes: Counter[str]) -> Iterator[tuple[str, Fragment]]:
    """The fragments of a part, each with its document's split; empty documents are counted and left out."""
    split = ""
    for fragment in fragments(part, options.text_key, notes, options.skip_bad):
        if fragment.opens and fragment.closes and not fragment.text.strip():
            notes["empty documents"] += 1
            continue
        if fragment.opens or not split:
            split = part.split or choose_split(fragment.text, options.valid_fraction)
        yield split, fragment


def choose_split(text: str, valid_fraction: float) -> str:
    """The split of a document, from its first 65,536 characters: a pure function of its content."""
    return "valid" if _share(text) < valid_fraction else "train"


def _share(text: str) -> float:
    """Where in [0, 1) a document's hash lies."""
    digest = hashlib.blake2b(text[:_HASHED].encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def splitting_fraction(pieces: Sequence[Piece], options: Options) -> float | None:
    """The least --valid-fraction, in hundredths, with which some documents validate and others train, if there is."""
    everything = replace(options, valid_fraction=0.0)
    texts = (each for piece in pieces for part in piece.parts for _, each in in_splits(part, everything, Counter()))
    shares = sorted(_share(fragment.text) for fragment in texts if fragment.opens)
    least = ceil(100 * shares[0] + 1e-9) / 100 if shares else 1.0
    return least if shares and shares[-1] >= least else None


def _batches(documents: Iterator[tuple[str, Fragment]]) -> Iterator[_Waiting]:
    waiting: _Waiting = []
    size = 0
    for split, fragment in documents:
        waiting.append((split, fragment))
        size += len(fragment.text)
        if size >= _BATCH:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def record_path(out: Path, number: int) -> Path:
    """Where a piece's record lies."""
    return out / "pieces" / f"{number:05d}.json"


def lengths_path(out: Path, number: int, split: str) -> Path:
    """Where the document lengths of a piece lie (int64, in order)."""
    return out / "pieces" / f"{number:05d}.{split}.lengths"


def finished(encoding: Encoding, piece: Piece) -> dict[str, object] | None:
    """The record of a piece that is done, of this plan, and undamaged; None if it has to be done (again).

    So has one that left out bad lines, where these are no longer to be skipped.
    """
    out = Path(encoding.out)
    try:
        record = read_json(record_path(out, piece.number))
        if record["key"] != encoding.key or (COUNT in record["notes"] and not encoding.options.skip_bad):
            return None
        for split, entry in record["splits"].items():
            if entry is None:
                continue
            path = out / split / entry["file"]
            lengths = lengths_path(out, piece.number, split)
            if path.stat().st_size != entry["bytes"] or lengths.stat().st_size != 8 * entry["documents"]:
                return None
            if checksum(path) != entry["sha256"] or int(np.fromfile(lengths, "<i8").sum()) != entry["tokens"]:
                return None
    except (OSError, ValueError, KeyError):
        return None
    return dict(record)
