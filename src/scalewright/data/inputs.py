"""The inputs of `prepare` as a list of files: found, sorted, and checked before any work starts.

    INPUT        one file, a folder (searched in order of names), or the name of a bundled text (prepare.py)
    kind         text     plain text: a file is a document; a literal <|endoftext|> in it separates documents
                 jsonl    one JSON object a line; the text stands under one key
                 parquet  the text is a column
                 wikitext plain text whose articles start at lines such as " = Title = "
    .gz, .zst    text and jsonl are read through them

In a folder, symbolic links, binary files, empty files and hidden names are left out, and counted. Of lines of
JSON that hold no text the first one stops `prepare`, or they are left out and listed:

{"text": "fine"}
{"text": "cut in ha          not JSON: line 2, byte 17
{"body": "fine"}             no key 'text': line 3
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.spec.errors import UserError

_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSED = (".gz", ".zst")
_READABLE = {*_KINDS, ".txt", ".md", ".text"} - {".parquet"}  # within a compressed file
_SNIFFED = 8192  # bytes looked at; a NUL among them means binary, as git and grep judge it
_LEFT_OUT = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class InputFile:
    """One file to read. `stamp` shows a change: its modification time, or a corpus's version."""

    path: str
    name: str  # as the user names it
    kind: str
    size: int  # bytes on disk
    stamp: str
    split: str | None = None  # "train" or "valid" where the corpus itself has splits

    @property
    def compressed(self) -> bool:
        """Whether it is read through gzip or Zstandard, and so only from its beginning."""
        return self.path.endswith(COMPRESSED)


def kind_of(path: Path) -> str:
    """How a file is read, by its name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return _KINDS.get(suffixes[-1] if suffixes else "", "text")


def find_files(inputs: Sequence[str | Path], skipped: Counter[str]) -> list[InputFile]:
    """Every file of paths that the user named, in a fixed order; counts the ones left out in `skipped`."""
    files: list[InputFile] = []
    for name in inputs:
        path = Path(name).expanduser()
        if path.is_dir():
            files += _in_folder(path, skipped)
        elif path.is_file():
            if _is_binary(path):
                raise UserError("a binary file", str(path), "give UTF-8 text, JSON lines or parquet (.parquet)")
            files.append(describe(path, path.name))
        elif path.exists():
            raise UserError("neither a file nor a folder", str(path), "give a file of text, or a folder of them")
        else:
            raise UserError("no such file or folder", str(path), "check the path")
    return [file for file in files if _not_empty(file, skipped)]


def describe(
    path: Path, name: str, stamp: str | None = None, kind: str | None = None, split: str | None = None
) -> InputFile:
    """A file as it is on the disk now."""
    status = path.stat()
    return InputFile(str(path), name, kind or kind_of(path), status.st_size, stamp or str(status.st_mtime_ns), split)


def files_below(folder: Path, skipped: Counter[str], left_out: Iterable[str] = ()) -> Iterator[Path]:
    """Regular files in a folder and below, by name; links aren't followed (they may go round in circles)."""
    without = _LEFT_OUT | set(left_out)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        raise UserError("cannot read the folder", str(folder), "change its permissions, or leave it out") from None
    for entry in entries:
        if entry.is_symlink():
            skipped["symbolic links"] += 1
        elif entry.name.startswith(".") or entry.name in without:
            skipped["hidden or generated"] += 1
        elif entry.is_dir() and os.path.isfile(os.path.join(entry.path, "pieces", "plan.json")):
            skipped["folders of prepared tokens"] += 1  # such as OUT itself, inside the input
        elif entry.is_dir():
            yield from files_below(Path(entry.path), skipped, left_out)
        elif stat.S_ISREG(entry.stat().st_mode):
            yield Path(entry.path)
        else:
            skipped["not regular files"] += 1


def _in_folder(folder: Path, skipped: Counter[str]) -> list[InputFile]:
    files = []
    for path in files_below(folder, skipped):
        if _is_binary(path):
            skipped["binary files"] += 1
        else:
            files.append(describe(path, str(Path(folder.name) / path.relative_to(folder))))
    return files


def _not_empty(file: InputFile, skipped: Counter[str]) -> bool:
    if file.size == 0:
        skipped["empty files"] += 1
    return file.size > 0


def _is_binary(path: Path) -> bool:
    *_, inner, last = ["", "", *(suffix.lower() for suffix in path.suffixes)]
    if last == ".parquet" or (last in COMPRESSED and inner in _READABLE):  # a.jsonl.gz, not a.tar.gz
        return False
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(_SNIFFED)
    except PermissionError:
        raise UserError("cannot read the file", str(path), "change its permissions, or leave it out") from None


COUNT = "bad lines"  # in a piece's notes, beside one entry for each line that is listed
LISTED = "bad line: "
MOST_LISTED = 1000  # of a piece


@dataclass
class BadLines:
    """The bad lines of one range of a file; `lines_before` counts the lines before it, when there is a bad one."""

    file: str
    lines_before: Callable[[], int]
    skip: bool
    notes: Counter[str]
    passed: int = 0  # lines of the range that are done
    _first: int | None = None

    def bad(self, byte: int, error: UserError) -> None:
        """Adds the line that begins at `byte`; raises UserError when such lines aren't to be skipped."""
        if self._first is None:
            self._first = self.lines_before() + 1
        place = f"{self.file}, line {self._first + self.passed}, byte {byte}"
        if not self.skip:
            advice = f"{error.how}, or leave such lines out with --skip-bad" if error.how else ""
            raise UserError(error.what, place, advice or "fix it, or leave such lines out with --skip-bad")
        if self.notes[COUNT] < MOST_LISTED:
            self.notes[f"{LISTED}{place}: {error.what}"] += 1
        self.notes[COUNT] += 1


def take_listed(notes: Counter[str]) -> list[str]:
    """Removes the listed bad lines from the notes and returns them; their count stays."""
    listed = [key for key in notes if key.startswith(LISTED)]
    for key in listed:
        del notes[key]
    return [key.removeprefix(LISTED) for key in listed]


def shown_lines(bad: list[str], counted: Mapping[str, int], most: int = 10) -> list[str]:
    """The first of them as lines for people, and how many more there are."""
    total = counted.get(COUNT, 0)
    more = [f"    and {total - most:,} more (--json lists them)"] if total > most else []
    return [*(f"    {line}" for line in bad[:most]), *more]
