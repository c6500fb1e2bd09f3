"""`scalewright prepare`: text in, token shards out; stopped anywhere, the same command goes on.

    inputs ──find──► files ──cut──► pieces ──tokenize, in parallel──► shards ──join──► OUT/{train,valid}/
                       │                         ▲                                     OUT/metadata.json, last
                       └── sample ──learn──► tokenizer.json

Everything that decides the result (files, options, tokenizer) is in OUT/pieces/plan.json before the first
piece is done. A rerun compares it, checks the finished pieces' checksums, and does only the others; it never
mixes two plans. The result has the same bytes for any number of workers and any number of interruptions.

Texts that are there without a network; the first two lie in bundled/, each with its source and license:

    shakespeare     1.1 MB of plays, public domain; the last tenth validates
    wikitext-2      2.4 MB of Wikipedia articles, CC BY-SA 3.0 (Merity et al. 2016);
                    its validation split trains, its test split validates
    python-stdlib   the source of this machine's own Python (some 12 MB); a tenth of the files validates
"""

from __future__ import annotations

import platform
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scalewright.data.documents import IN_FILE, REPAIRED
from scalewright.data.encode import Encoding, finished, splitting_fraction
from scalewright.data.inputs import InputFile, describe, files_below, find_files, take_listed
from scalewright.data.join import join_splits
from scalewright.data.metadata import FORMAT, METADATA, SPLITS, VERSION
from scalewright.data.pieces import Piece, cut_pieces, plan_key
from scalewright.data.plan import DEFAULT_VALID_FRACTION, Options, at_work, clear, held, settle, sweep
from scalewright.data.remote import put_tokens, work_folder
from scalewright.data.sample import Words, ready_tokenizer
from scalewright.data.shards import checksum, commit_json, disk_error, token_dtype
from scalewright.data.tokenizer import SMALLEST_VOCABULARY, library, special_token_list, tokenizer_file
from scalewright.data.workers import Progress, do_pieces, progress_of
from scalewright.spec.common.urls import is_url, parse_url
from scalewright.spec.ends import BOS_CHOICES
from scalewright.spec.errors import UserError, nearest, unknown
from scalewright.storage.objects import open_store


@dataclass(frozen=True)
class Summary:
    """The result of `prepare`; a split has {tokens, documents, text_bytes, bytes_per_token, shards}."""

    out: str
    vocab_size: int
    eod: int
    bos: tuple[int, ...]  # before each document
    ends: str  # how a document begins and ends, in words
    tokenizer_trained: bool
    tokenizer_sha256: str
    dtype: str
    splits: dict[str, dict[str, Any]]
    left_out: dict[str, int]  # not taken: count by reason
    bad_lines: list[str]  # those left out by --skip-bad: file, line, byte and why; the first 1,000 of a piece
    mended: dict[str, int]  # taken after a repair: cut, or with characters replaced
    mended_files: list[str]  # those with bytes that aren't UTF-8
    pieces: int
    pieces_kept: int  # found finished from an earlier run
    input_bytes: int
    seconds: float
    mb_per_s: float  # 10^6 bytes of input a second, of the pieces done in this run, tokenizing only
    unvalidated: str = ""  # why no document validates, though a share of them was to
    statistics: dict[str, dict[str, object]] | None = None  # by split, with --stats

    def plain(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return asdict(self)


def prepare(
    inputs: Sequence[str | Path] | str | Path, out: str | Path, *, vocab_size: int | None = None,
    tokenizer: str | Path | None = None, valid_fraction: float | None = None, text_key: str = "text",
    eod: str | None = None, bos: str = "auto", special_tokens: Sequence[str] | str | Path | None = None,
    workers: int | None = None, stats: bool = False, overwrite: bool = False, skip_bad: bool = False,
    renew: bool = False, progress: Literal["auto"] | Callable[[str, int, int], None] | None = "auto",
) -> Summary:  # fmt: skip
    """Text files, JSON lines, parquet, folders or named corpora as token shards in `out`, a folder or a store's URL.

    With neither `vocab_size` nor `tokenizer`, a byte-level BPE of a size that fits the text is learnt. `bos`: documents
    begin as the tokenizer begins a text (auto), or always or never with its token for that. `special_tokens` (a list,
    or a file with one a line) join the tokenizer, and are read as such in texts. `valid_fraction` (default 0.1) of the
    documents validate; of few plain texts, the end of each does. `workers` None takes every core. `skip_bad` leaves out
    lines of JSON that hold no text, and lists them; without it the first one is an error. `overwrite` deletes what an
    earlier call left there, `renew` only what was made of other texts or with other options.
    `progress(stage, done, total)` is called with bytes; "auto" draws a bar on a terminal, or prints a line every 8 s.

    Raises UserError for a mistake in the inputs, RunError for a full disk or a dead worker; the same call
    then goes on from there.
    """
    began = time.monotonic()
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    if is_url(out):
        url = parse_url(out, "--out")
        open_store(url, create=True)  # what can't be is said before the work
        summary = prepare(
            inputs, work_folder(url), vocab_size=vocab_size, tokenizer=tokenizer, valid_fraction=valid_fraction,
            text_key=text_key, eod=eod, bos=bos, special_tokens=special_tokens, workers=workers, stats=stats,
            overwrite=overwrite, skip_bad=skip_bad, renew=renew, progress=progress,
        )  # fmt: skip
        put_tokens(work_folder(url), url, overwrite or renew)
        return replace(summary, out=str(url))
    _check_inputs(inputs, out, workers)
    special = special_token_list(special_tokens) if special_tokens else None
    options = _options(vocab_size, tokenizer, valid_fraction, text_key, eod, skip_bad, bos, special)
    library()
    folder = Path(out).expanduser()
    skipped: Counter[str] = Counter()
    try:
        files = _all_files(inputs, skipped)
        if valid_fraction is not None and any(file.split for file in files):
            raise UserError("wikitext-2 has its own validation split", "--valid-fraction", "leave it out")
        with held(folder):
            if overwrite:
                clear(folder)
            settle(folder, files, options, [str(name) for name in inputs], renew)
            with at_work(folder), progress_of(progress) as shown:
                try:
                    work = _Work(folder, files, options, shown)
                    return work.run(skipped, workers, stats, valid_fraction is not None, began)
                finally:
                    sweep(folder)
    except OSError as error:
        raise disk_error(error, folder) from error


@dataclass
class _Work:
    out: Path
    files: list[InputFile]
    options: Options
    shown: Progress

    def run(
        self, skipped: Counter[str], workers: int | None, stats: bool, must_validate: bool, began: float
    ) -> Summary:
        """Does the unfinished pieces, and joins everything."""
        pieces = cut_pieces(self.files, self.options.valid_fraction)
        words = ready_tokenizer(self.out, pieces, self.options, self.shown)
        encoding = self._encoding(words)
        records = self._finished(encoding, pieces)
        todo = [piece for piece in pieces if piece.number not in records]
        kept, size, doing = len(records), sum(piece.size for piece in todo), time.monotonic()
        self.shown.start("tokenize", size)
        for record in do_pieces(encoding, todo, workers, self.shown.advance):
            records[record["number"]] = record
        took = time.monotonic() - doing
        ordered = [records[piece.number] for piece in pieces]
        least = self._validation_left_out(ordered, pieces, must_validate)
        splits, statistics = join_splits(self.out, ordered, words, encoding, stats)
        notes = skipped + sum((Counter(record["notes"]) for record in ordered), Counter[str]())
        bad = take_listed(notes)
        files = sorted(key for key in notes if key.startswith(IN_FILE))
        repaired = {REPAIRED["bytes"]: len(files)} if files else {}
        names = [key.removeprefix(IN_FILE) for key in files if notes.pop(key)]
        repaired |= {reason: notes.pop(reason) for reason in REPAIRED.values() if reason in notes}
        self._commit(words, encoding, splits, {"left_out": dict(notes), "mended": repaired})
        return Summary(
            out=str(self.out), vocab_size=words.vocab_size, eod=words.eod, bos=words.bos, ends=words.ends,
            tokenizer_trained=words.trained, tokenizer_sha256=words.sha256, dtype=encoding.dtype, splits=splits,
            left_out=dict(notes), bad_lines=bad, mended=repaired, mended_files=names,
            pieces=len(pieces), pieces_kept=kept,
            unvalidated=least, input_bytes=sum(piece.size for piece in pieces), seconds=time.monotonic() - began,
            mb_per_s=size / took / 1e6 if todo and took > 0 else 0.0, statistics=statistics,
        )  # fmt: skip

    def _validation_left_out(self, records: list[dict[str, Any]], pieces: list[Piece], must_validate: bool) -> str:
        """What to do where no document fell into the validation split; raises UserError where it was asked for."""
        asked = self.options.valid_fraction
        if not asked or any(record["splits"]["valid"] for record in records):
            return ""
        least = splitting_fraction(pieces, self.options)
        how = "name another text in data.valid" if least is None else f"give --valid-fraction {least:g}"
        if must_validate:
            how += ", more documents, or 0 for no validation"
            raise UserError("no document fell into the validation split", f"--valid-fraction {asked:g}", how)
        return f"no document fell into a share of {asked:g}: {how}" + (" --overwrite" if least else "")

    def _encoding(self, words: Words) -> Encoding:
        starts = {"bos": words.bos} if words.bos else {}  # pieces of before it was recorded have none
        key = plan_key(self.files, {**self.options.plain(), "tokenizer": words.sha256, **starts})
        dtype = token_dtype(words.vocab_size)
        return Encoding(str(self.out), str(words.path), words.eod, dtype, self.options, key, words.bos)

    def _finished(self, encoding: Encoding, pieces: list[Piece]) -> dict[int, dict[str, Any]]:
        for split in SPLITS:
            (self.out / split).mkdir(exist_ok=True)
        self.shown.start("verify", sum(piece.size for piece in pieces))
        records: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            if record := finished(encoding, piece):
                records[piece.number] = record
                self.shown.advance(piece.size)
        return records

    def _commit(self, words: Words, encoding: Encoding, splits: Mapping[str, object], notes: dict[str, object]) -> None:
        """Writes the metadata last; nothing of this very run (time, workers): equal work, equal bytes."""
        data = {
            "format": FORMAT, "version": VERSION, "vocab_size": words.vocab_size, "eod": words.eod,
            "bos": list(words.bos), "special_tokens": words.special, "dtype": encoding.dtype,
            "tokenizer_sha256": words.sha256, "options": self.options.plain(), "inputs": len(self.files),
            "splits": splits, **notes,
        }  # fmt: skip
        commit_json(self.out / METADATA, data)


def _check_inputs(inputs: Sequence[str | Path], out: str | Path, workers: int | None) -> None:
    if not inputs:
        raise UserError("nothing to prepare", "prepare", "name a file, a folder, or one of " + ", ".join(CORPORA))
    if Path(out).expanduser().resolve() in [Path(path).expanduser().resolve() for path in inputs]:
        raise UserError("the result would lie among its own input", str(out), "choose another --out")
    if workers is not None and workers < 1:
        raise UserError(f"{workers} workers", "--workers", "give 1 or more")


def _options(
    vocab_size: int | None, tokenizer: str | Path | None, valid_fraction: float | None, text_key: str, eod: str | None,
    skip_bad: bool, bos: str, special: list[str] | None,
) -> Options:  # fmt: skip
    """The options that decide the result; raises UserError for impossible ones, before anything is read."""
    if vocab_size is not None and tokenizer is not None:
        raise UserError("--vocab-size and --tokenizer are both given", "prepare", "keep one of them")
    if bos not in BOS_CHOICES:
        raise unknown("bos", bos, BOS_CHOICES, "--bos")
    smallest = SMALLEST_VOCABULARY + len(special or ())
    if vocab_size is not None and vocab_size < smallest:
        advice = f"give at least {smallest}: 256 bytes, the end of a document and other special tokens"
        raise UserError(f"a vocabulary of {vocab_size} is too small", "--vocab-size", advice)
    if valid_fraction is not None and not 0 <= valid_fraction < 1:
        raise UserError(f"a validation fraction of {valid_fraction}", "--valid-fraction", "give one in 0 ≤ F < 1")
    fraction = DEFAULT_VALID_FRACTION if valid_fraction is None else valid_fraction
    path = tokenizer_file(tokenizer) if tokenizer is not None else None
    digest, given = (checksum(path), str(path)) if path else (None, None)
    start = None if bos == "auto" else bos
    return Options(vocab_size, given, digest, fraction, text_key, eod, skip_bad, start, special)


def _all_files(inputs: Sequence[str | Path], skipped: Counter[str]) -> list[InputFile]:
    """The files of every input: a path that exists wins over a name. Raises UserError when there are none."""
    files: list[InputFile] = []
    for path in inputs:
        name, exists = str(path), Path(path).expanduser().exists()
        if name in CORPORA and not exists:
            files += corpus(name, skipped)
        elif not exists and "/" not in name and (near := nearest(name, CORPORA)):
            raise UserError(f"no file, folder or text named '{name}'", "prepare", f"did you mean {near[0]}?")
        else:
            files += find_files([path], skipped)
    if not files:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "no files"
        named = ", ".join(str(path) for path in inputs)
        raise UserError(f"no text in the input: {reasons}", named, "give a file or folder with text")
    if len({file.path for file in files}) < len(files):
        names = Counter(file.path for file in files).most_common(1)
        raise UserError(f"{names[0][0]} is given {names[0][1]} times", "prepare", "name each input once")
    return files


FOLDER = Path(__file__).parent / "bundled"
# The files of each bundled text: name, kind (inputs.py), and split; no split: it is cut as any input is.
BUNDLED: dict[str, tuple[tuple[str, str, str | None], ...]] = {
    "shakespeare": (("input.txt", "text", None),),
    "wikitext-2": (("valid.txt", "wikitext", "train"), ("test.txt", "wikitext", "valid")),
}
CORPORA = (*BUNDLED, "python-stdlib")


def corpus(name: str, skipped: Counter[str]) -> list[InputFile]:
    """The files of a named corpus; raises UserError when this installation lacks them."""
    if name == "python-stdlib":
        return _standard_library(skipped)
    try:
        return [describe(FOLDER / name / file, f"{name}/{file}", "bundled", *how) for file, *how in BUNDLED[name]]
    except FileNotFoundError as error:
        how = "install scalewright again"
        raise UserError(f"the bundled text {name} is missing", str(error.filename), how) from None


def _standard_library(skipped: Counter[str]) -> list[InputFile]:
    """Every .py file of the running Python's library, without installed packages and without tests."""
    root = Path(sysconfig.get_path("stdlib"))
    stamp = f"Python {platform.python_version()}"
    others = ("site-packages", "dist-packages", "test", "tests", "idle_test")
    paths = [path for path in files_below(root, Counter(), others) if path.suffix == ".py"] if root.is_dir() else []
    if not paths:
        raise UserError("this Python has no library source", str(root), "give a folder of source files instead")
    files = [describe(path, f"python-stdlib/{path.relative_to(root)}", stamp) for path in paths]
    skipped["empty files"] += sum(file.size == 0 for file in files)
    return [file for file in files if file.size]
