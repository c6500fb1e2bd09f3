"""`scalewright prepare`: text in, token shards out; stopped anywhere, the same command goes on.

    inputs ──find──► files ──cut──► pieces ──tokenize, in parallel──► shards ──join──► OUT/{train,valid}/metadata.json
                       │                         ▲                                     OUT/metadata.json   (last)
                       └── sample ──learn──► tokenizer.json

Everything that decides the result (files, options, tokenizer) is in OUT/pieces/plan.json before the first piece is done.
A rerun compares it, checks the finished pieces' checksums, and does only the others; it never mixes two plans.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalewright.data.corpora import CORPORA, corpus
from scalewright.data.encode import Encoding, finished
from scalewright.data.inputs import InputFile, find_files
from scalewright.data.join import join_splits
from scalewright.data.pieces import Piece, cut_pieces, plan_key
from scalewright.data.plan import Options, clear, settle
from scalewright.data.progress import Progress, progress_of
from scalewright.data.sample import ready_tokenizer
from scalewright.data.shards import FORMAT, METADATA, SPLITS, VERSION, commit_json, disk_error, token_dtype
from scalewright.data.tokenizer import SMALLEST_VOCABULARY, library
from scalewright.data.workers import do_pieces
from scalewright.spec.errors import UserError, nearest

DEFAULT_VALID_FRACTION = 0.1


@dataclass(frozen=True)
class Summary:
    """What `prepare` made. `splits` holds, by name, {tokens, documents, text_bytes, bytes_per_token, shards}."""

    out: str
    vocab_size: int
    eod: int
    tokenizer_trained: bool
    tokenizer_sha256: str
    dtype: str
    splits: dict[str, dict[str, Any]]
    left_out: dict[str, int]  # what wasn't read, or had to be mended: count by reason
    pieces: int
    pieces_kept: int  # found finished from an earlier run
    input_bytes: int
    seconds: float
    mb_per_s: float  # 10^6 bytes of input a second, of the pieces done in this run, tokenizing only
    statistics: dict[str, Any] | None = None  # by split, with --stats

    def plain(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return dict(self.__dict__)


def prepare(
    inputs: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    vocab_size: int | None = None,
    tokenizer: str | Path | None = None,
    valid_fraction: float | None = None,
    text_key: str = "text",
    eod: str | None = None,
    workers: int | None = None,
    stats: bool = False,
    overwrite: bool = False,
    progress: Literal["auto"] | Callable[[str, int, int], None] | None = "auto",
) -> Summary:
    """Text files, JSON lines, parquet, folders or named corpora as token shards in `out`.

    With neither `vocab_size` nor `tokenizer`, a byte-level BPE of a size that fits the text is learnt. `valid_fraction`
    (default 0.1) of the documents validate; of a few long plain texts, the last part of each does. `workers` None takes
    every core. `progress(stage, done, total)` is told bytes; "auto" draws a bar on a terminal and is quiet elsewhere.

    Raises UserError for a mistake in the inputs, RunError for a full disk or a dead worker; the same call then goes on.
    """
    began = time.monotonic()
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    options = _checked(inputs, vocab_size, tokenizer, valid_fraction, text_key, eod, workers)
    library()
    folder = Path(out).expanduser()
    skipped: Counter[str] = Counter()
    files = _all_files(inputs, skipped)
    if valid_fraction is not None and any(file.split for file in files):
        raise UserError("wikitext-2 has its own validation split", "--valid-fraction", "leave it out")
    try:
        with progress_of(progress) as shown:
            return _prepare(files, skipped, options, folder, workers, stats, overwrite, shown, began)
    except OSError as error:
        raise disk_error(error, folder) from error


def _prepare(
    files: list[InputFile],
    skipped: Counter[str],
    options: Options,
    out: Path,
    workers: int | None,
    stats: bool,
    overwrite: bool,
    shown: Progress,
    began: float,
) -> Summary:
    if overwrite:
        clear(out)
    settle(out, files, options)
    pieces = cut_pieces(files, options.valid_fraction)
    words = ready_tokenizer(out, pieces, options, shown)
    key = plan_key(files, {**options.plain(), "tokenizer": words.sha256})
    encoding = Encoding(
        str(out),
        str(words.path),
        words.eod,
        token_dtype(words.vocab_size),
        options.text_key,
        options.valid_fraction,
        key,
    )
    records, todo = _look_around(encoding, pieces, shown)
    kept, doing = len(records), time.monotonic()
    shown.start("tokenize", sum(piece.size for piece in todo))
    for record in do_pieces(encoding, todo, workers, shown.advance):
        records[record["number"]] = record
    took = time.monotonic() - doing
    ordered = [records[piece.number] for piece in pieces]
    splits, statistics = join_splits(out, ordered, words, encoding, stats)
    left_out = skipped + sum((Counter(record["notes"]) for record in ordered), Counter[str]())
    size = sum(piece.size for piece in todo)
    description = {
        "tokenizer_sha256": words.sha256,
        "vocab_size": words.vocab_size,
        "eod": words.eod,
        "dtype": encoding.dtype,
    }
    finished_data = {
        **description,
        "options": options.plain(),
        "inputs": len(files),
        "splits": splits,
        "left_out": dict(left_out),
    }
    commit_json(out / METADATA, {"format": FORMAT, "version": VERSION, **finished_data})
    return Summary(
        out=str(out),
        tokenizer_trained=words.trained,
        splits=splits,
        left_out=dict(left_out),
        pieces=len(pieces),
        pieces_kept=kept,
        input_bytes=sum(piece.size for piece in pieces),
        seconds=time.monotonic() - began,
        mb_per_s=size / took / 1e6 if todo and took > 0 else 0.0,
        statistics=statistics,
        **description,  # type: ignore[arg-type]
    )


def _look_around(
    encoding: Encoding, pieces: list[Piece], shown: Progress
) -> tuple[dict[int, dict[str, Any]], list[Piece]]:
    """The records of pieces that an earlier run finished, and the pieces still to be done."""
    for split in SPLITS:
        (Path(encoding.out) / split).mkdir(exist_ok=True)
    shown.start("verify", sum(piece.size for piece in pieces))
    records: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if record := finished(encoding, piece):
            records[piece.number] = record
            shown.advance(piece.size)
    return records, [piece for piece in pieces if piece.number not in records]


def _checked(
    inputs: Sequence[str | Path],
    vocab_size: int | None,
    tokenizer: str | Path | None,
    valid_fraction: float | None,
    text_key: str,
    eod: str | None,
    workers: int | None,
) -> Options:
    """The options that decide the result; raises UserError for impossible ones, before anything is read."""
    if not inputs:
        raise UserError(
            "nothing to prepare", "prepare", "name a file, a folder, or one of " + ", ".join(CORPORA)
        )
    if vocab_size is not None and tokenizer is not None:
        raise UserError("--vocab-size and --tokenizer are both given", "prepare", "keep one of them")
    if vocab_size is not None and vocab_size < SMALLEST_VOCABULARY:
        how = f"give at least {SMALLEST_VOCABULARY}: 256 bytes and the end of a document"
        raise UserError(f"a vocabulary of {vocab_size} is too small", "--vocab-size", how)
    if valid_fraction is not None and not 0 <= valid_fraction < 1:
        raise UserError(
            f"a validation fraction of {valid_fraction}", "--valid-fraction", "give 0 or more and less than 1"
        )
    if workers is not None and workers < 1:
        raise UserError(f"{workers} workers", "--workers", "give 1 or more")
    fraction = DEFAULT_VALID_FRACTION if valid_fraction is None else valid_fraction
    return Options.make(vocab_size, tokenizer, fraction, text_key, eod)


def _all_files(inputs: Sequence[str | Path], skipped: Counter[str]) -> list[InputFile]:
    """The files of every input: a path that exists wins over a name."""
    files: list[InputFile] = []
    for given in inputs:
        name = str(given)
        if name in CORPORA and not Path(name).exists():
            files += corpus(name, skipped)
        elif not Path(name).expanduser().exists() and "/" not in name and (near := nearest(name, CORPORA)):
            raise UserError(f"no file, folder or text named '{name}'", "prepare", f"did you mean {near[0]}?")
        else:
            files += find_files([given], skipped)
    if not files:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "no files"
        raise UserError(
            f"no text in the input: {reasons}", ", ".join(map(str, inputs)), "give a file or folder with text"
        )
    return files
