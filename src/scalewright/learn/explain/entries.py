"""The entries as data, one read at a time: a name leads to a piece of a file, and only that is parsed.

    terms/memory.yaml   # Memory: where the bytes go        the theme: its heading, and what it is about
                        - term: KV cache                    begins an entry
                          aliases: [key-value cache]        on one line

    fold("KV caches") == fold("kv-cache")                   case, hyphens, plurals and -ism are forgiven

`read_all` validates all of them (a test does); a command validates what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from scalewright.spec.base import Spec, parse_yaml
from scalewright.spec.errors import UserError, unknown

FOLDER = Path(__file__).parent / "terms"
HEADING = re.compile(r"# (.+?): (.+)")
ENTRY = re.compile(r"^- term: ", re.MULTILINE)


class Computed(Spec):
    """A public function of this package, and what it is called with."""

    function: str  # below scalewright: learn.roofline.ridge_point
    given: Mapping[str, str] = Field(default_factory=dict)  # argument -> a quantity of the run by another name
    fixed: Mapping[str, Any] = Field(default_factory=dict)  # argument -> a value that belongs to the term
    assume: Mapping[str, Any] = Field(default_factory=dict)  # what the run must have: {pp: 4}, {moe: mixtral-8x7b}


class Number(Computed):
    """The number of an entry, in base units."""

    take: str = ""  # of the function's result: an attribute, a key or an index
    unit: str = ""  # B, B/s, FLOP, FLOP/s, s, share, or what is counted
    of: str  # what it is a number of; {quantities} of the run are filled in
    constant: str = ""  # why it is the same for every run


class Picture(Computed):
    """A picture of an entry: a function of pictures.py."""


class Entry(Spec):
    """What one word means."""

    term: str
    aliases: tuple[str, ...] = ()
    title: str  # one line, the glossary's
    instead_of: str = ""  # words that pages don't use for it
    text: str  # what it is; why it matters; what it means in practice
    formula: str = ""
    source: str = ""
    number: Number
    command: str
    picture: Picture | None = None
    see: tuple[str, ...]
    read: str


@dataclass(frozen=True)
class Place:
    """Where an entry is: its theme and its text, unparsed."""

    theme: str
    term: str
    aliases: tuple[str, ...]
    title: str
    text: str

    def entry(self) -> Entry:
        """The entry, validated."""
        (keys,) = parse_yaml(self.text, self.term, trusted=True)
        return Entry.parse(keys, self.term)


def fold(name: str) -> str:
    """A name as it is looked up: lower case, words without plurals, -ism, and the marks between them."""
    words = re.sub(r"[^a-z0-9+#&]+", " ", name.lower().replace("isation", "ization")).split()
    return " ".join(map(_stem, words))


def _stem(word: str) -> str:
    if len(word) < 3:
        return word
    word = word.removesuffix("ism")
    word = word if word.endswith("ss") else word.removesuffix("s").removesuffix("e")
    return word[:-1] + "i" if word.endswith("y") else word


@lru_cache(maxsize=1)
def places() -> tuple[Place, ...]:
    """Every entry's place, by theme and term."""
    return tuple(place for file in sorted(FOLDER.glob("*.yaml")) for place in _places(file))


def _places(file: Path) -> Iterator[Place]:
    text = file.read_text(encoding="utf-8")
    heading = HEADING.match(text)
    assert heading is not None, f"{file.name} begins with `# Theme: what it is about`"
    starts = [match.start() for match in ENTRY.finditer(text)]
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[begin:end]
        aliases = tuple(alias.strip() for alias in _line(piece, "aliases").strip("[]").split(",") if alias.strip())
        yield Place(heading[1], _line(piece, "- term"), aliases, _line(piece, "title"), piece)


def _line(piece: str, key: str) -> str:
    match = re.search(rf"^ *{key}: (.*)$", piece, re.MULTILINE)
    return match[1].strip().strip("\"'") if match else ""


@lru_cache(maxsize=1)
def names() -> dict[str, Place]:
    """Folded names, terms and aliases, and where they lead."""
    table = {fold(alias): place for place in places() for alias in place.aliases}
    return table | {fold(place.term): place for place in places()}


def find(name: str) -> Place:
    """The entry of a term or an alias; raises UserError with the nearest names."""
    if (place := names().get(fold(name))) is not None:
        return place
    if not name.strip():
        raise UserError("no term is given", "scalewright explain", "`scalewright explain --list` has them all")
    known = [word for place in places() for word in (place.term, *place.aliases)]
    inside = [word for word in known if fold(name) in fold(word)]
    see = "`scalewright explain --list` has them all"
    if inside:
        near = " or ".join(f"'{word}'" for word in inside[:3])
        raise UserError(f"unknown term '{name}'", "scalewright explain", f"did you mean {near}? {see}")
    raise unknown("term", name, known, "scalewright explain", see)


def read_all() -> tuple[Entry, ...]:
    """Every entry, validated."""
    return tuple(place.entry() for place in places())
