"""Damage to what a run reads: token shards, their metadata, the tokenizer, its own lines and its run file.

Half a run is there, one of its files is damaged, and the run goes on. It holds when it ends with the undisturbed run's
bits (the damage changed nothing that counts, or came back from a checkpoint), or is refused in a line that names the
file; lines that are gone may be gone only when that is told.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.attempts.place import Place

READERS = (("report", "out"), ("goodput", "out"), ("compare", "out", "run"), ("explain", "MFU", "--run", "out"),
           ("checkpoint", "ls", "out"), ("diagnose", "out"), ("predict", "out/run.yaml"))  # fmt: skip


def flip(content: bytearray, draw: random.Random) -> None:
    """A bit."""
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def cut(content: bytearray, draw: random.Random) -> None:
    """The end is missing."""
    del content[draw.randrange(len(content)) :]


def zeros(content: bytearray, draw: random.Random) -> None:
    """A run of NUL, as after a crash of a disk."""
    begin = draw.randrange(len(content))
    end = min(len(content), begin + draw.randrange(1, 200))
    content[begin:end] = bytes(end - begin)


def tail(content: bytearray, draw: random.Random) -> None:
    """NUL behind the end."""
    content += bytes(draw.randrange(1, 5000))


def digits(content: bytearray, draw: random.Random) -> None:
    """A digit is another one, as an editor leaves it; of tokens a byte."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57] or range(len(content))
    content[draw.choice(places)] = 48 + draw.randrange(10)


def line_gone(content: bytearray, draw: random.Random) -> None:
    """A line is gone; of tokens a stretch."""
    lines = bytes(content).splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    content[:] = b"".join(lines)


def line_twice(content: bytearray, draw: random.Random) -> None:
    """A line is there twice."""
    lines = bytes(content).splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    content[:] = b"".join(lines)


def word(content: bytearray, draw: random.Random) -> None:
    """A value is of another kind: a word, null, a list, a huge number."""
    values = list(re.finditer(rb"(?<=[:\[,] )[-\w.\"]+", bytes(content)))
    if values:
        value = draw.choice(values)
        kinds = (b'"x"', b"null", b"[1]", b"1e999", b"-1", b"{}", b"true", b"99999999999999999999", b'""')
        content[value.start() : value.end()] = draw.choice(kinds)


def gone(content: bytearray, draw: random.Random) -> None:
    """The file is gone."""


def carriage(content: bytearray, draw: random.Random) -> None:
    """Copied through Windows: CR LF, a byte order mark."""
    content[:] = b"\xef\xbb\xbf" + bytes(content).replace(b"\n", b"\r\n")


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [
    flip, flip, cut, zeros, tail, digits, line_gone, line_twice, word, word, carriage, gone,
]  # fmt: skip


def damaged(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """Every fourth attempt only reads: a verb is given the damaged run."""
    out = place.half(folder)
    files = [path for path in sorted((folder / "tokens").rglob("*")) if path.is_file() and path.stat().st_size]
    name = draw.choice(["metrics.jsonl", "events.jsonl", "run.yaml", "tokenizer.json"])
    file = out / name if number % 2 else draw.choice(files)
    do = draw.choice(DAMAGES)
    content = bytearray(before := file.read_bytes())
    do(content, draw)
    file.write_bytes(content)
    if do is gone:
        file.unlink()
    what = f"{file.relative_to(folder)}: {(do.__doc__ or '').strip()}"
    if content == before and do is not gone:
        return what, ""
    if number % 4 == 1:
        verb = draw.choice(READERS)
        shutil.copytree(place.made / "run", folder / "run", dirs_exist_ok=True)
        return f"{what} {' '.join(verb)}", place.call(folder, *verb).problem()
    done = place.call(folder, "train", "run.yaml")
    if problem := done.problem((0, 2)):
        return what, problem
    if done.code == 2:
        named = file.name in done.err or file.parent.name in done.err or "data." in done.err
        return what, "" if named else f"refused, without the file's name: {done.err[-300:]}"
    problem = place.differs(out)
    told = file.name == "metrics.jsonl" and ("lost" in done.err or "came back" in done.err)
    return what, "" if told and "numbers" in problem else problem
