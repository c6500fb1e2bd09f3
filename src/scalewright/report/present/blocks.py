"""An answer as blocks: lines, bars, tables and notes, whatever medium shows them.

title                                         llama-3.1-8b on 64 x h100-sxm: dp 64 · zero 2
head      what, how sure, what next,          step       7.99 s, 42.7% MFU; 62.9 of 72.0 GiB: fits
          what was assumed                    how sure   8 of 10 fall between ...
blocks    bars, tables, notes; those that are `detail`, and more than a `few` rows, only on demand
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

PROSE, WRAPS = 26, 16  # characters of a cell
Tone = Literal["", "good", "warn", "bad"]
Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Line:
    """A sentence behind its label; of a `listed` one, a list, one line is shown unasked; a page lists its `items`."""

    label: str
    text: str
    tone: Tone = ""
    detail: bool = False
    listed: bool = False
    items: Sequence[str] = ()

    @classmethod
    def of_items(cls, label: str, items: Sequence[str], nothing: str = "") -> Line:
        """A list in one sentence."""
        return cls(label, ", ".join(items) or nothing, listed=True, items=items)


@dataclass(frozen=True)
class Bar:
    """One bar: its length, in the unit of its block, and the same in words; `part` is its colour."""

    name: str
    value: float
    text: str
    part: int = 0


@dataclass(frozen=True)
class Bars:
    """Bars below each other, each a share of their sum; those that stand `beside` each other, of the largest."""

    title: str
    rows: Sequence[Bar]
    detail: bool = False
    beside: bool = False

    def shares(self, everything: bool = True) -> list[tuple[Bar, float]]:
        """The bars that can be seen, with their shares of the sum; unasked only those of some size."""
        if self.beside:
            largest = max((row.value for row in self.rows), default=0.0) or 1.0
            return [(row, row.value / largest) for row in self.rows]
        whole, least = sum(max(row.value, 0.0) for row in self.rows) or 1.0, 0.0005 if everything else 0.015
        return [(row, row.value / whole) for row in self.rows if row.value > least * whole]


@dataclass(frozen=True)
class Part:
    """A part of stacked bars: its name, its sign on a terminal, its colour on a page."""

    name: str
    sign: str
    part: int


@dataclass(frozen=True)
class Stacks:
    """Stacked bars below each other: (name, the percent of each part)."""

    parts: Sequence[Part]
    rows: Sequence[tuple[str, Sequence[float]]]
    title: str = ""
    note: str = ""
    detail: bool = False
    few: int | None = None

    @property
    def seen(self) -> list[Part]:
        """The parts that any bar has."""
        return [part for at, part in enumerate(self.parts) if any(values[at] >= 0.05 for _, values in self.rows)]


@dataclass(frozen=True)
class Table:
    """A table; the first column names its rows.

    Unasked, a `few` rows, without `spare` columns, and of a name its first `short` characters.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    detail: bool = False
    few: int | None = None
    spare: Sequence[str] = ()
    short: int | None = None

    def widths(self) -> list[str]:
        """Of each column whether its cells are sentences (`prose`), or words that may `wrap`, else as they are."""
        longest = [max((len(str(row[at])) for row in self.rows), default=0) for at in range(len(self.heads))]
        return ["prose" if length > PROSE else "wrap" if length > WRAPS else "" for length in longest]

    def cells(self, everything: bool) -> tuple[list[str], list[list[Cell]]]:
        """The heads and the rows to show."""
        kept = [at for at, head in enumerate(self.heads) if everything or head not in self.spare]
        heads, rows = [self.heads[at] for at in kept], [[row[at] for at in kept] for row in self.rows]
        if everything:
            return heads, rows
        if self.short is not None:
            rows = [[str(row[0])[: self.short], *row[1:]] for row in rows]
        return heads, rows[: self.few]


@dataclass(frozen=True)
class Note:
    """Sentences under a title, each an item of a list; unasked, a `few`.

    `gain`: p10, p50, p90 of what follows from them, as shares of the largest such gain.
    """

    title: str
    lines: Sequence[str]
    detail: bool = False
    few: int | None = None
    gain: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Text:
    """A file's text, as it is."""

    title: str
    text: str
    detail: bool = False


Block: TypeAlias = Line | Bars | Stacks | Table | Note | Text


@dataclass(frozen=True)
class Shown:
    """An answer: its title and first lines, then the rest."""

    title: str
    head: Sequence[Line]
    blocks: Sequence[Block]

    @property
    def brief(self) -> list[Block]:
        """The blocks that most people need."""
        return [block for block in self.blocks if not block.detail]

    @property
    def more(self) -> list[Block]:
        """The blocks that are shown only on demand."""
        return [block for block in self.blocks if block.detail]


def is_cut(block: Block) -> bool:
    """Whether a block has more than is shown unasked."""
    if isinstance(block, Table) and (block.spare or block.cells(True) != block.cells(False)):
        return True
    smaller = isinstance(block, Bars) and len(block.shares(True)) > len(block.shares(False))
    return bool(smaller or block.detail or left_out(block))


def left_out(block: Block) -> int:
    """Rows or lines of a block that are shown only on demand."""
    if isinstance(block, (Line, Bars, Text)) or block.few is None:
        return 0
    return max(len(block.lines if isinstance(block, Note) else block.rows) - block.few, 0)
