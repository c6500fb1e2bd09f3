"""How wide the columns of a table are: words wrap, numbers and names never do.

all fits                       every column as wide as its longest cell
text columns can give way      they wrap between words, the rest stays
nothing can give way any more  the table continues below, in blocks that repeat the first column:

    ranks   parameters   gradients            ranks   activations   peak
    0-15          1.35        0.67     then   0-15           3.10   5.92
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

GAP = 2  # blanks between two columns
WIDE_TEXT = 24  # what a text column keeps at least before the table is continued below, where it has as much


@dataclass(frozen=True)
class Column:
    """A column as text; `fixed` ones (numbers, the first column) are never wrapped."""

    name: str
    cells: tuple[str, ...]
    fixed: bool

    @property
    def natural(self) -> int:
        return max(map(cell_len, (self.name, *self.cells)), default=0)

    @property
    def least(self) -> int:
        """The width below which a number, a name or a word would be cut; headings wrap between words."""
        heading = _longest_word(self.name)
        if self.fixed:
            return max([heading, *map(cell_len, self.cells)])
        return max([heading, *map(_longest_word, self.cells)])

    @property
    def readable(self) -> int:
        """The width at which its text is still good to read."""
        return self.least if self.fixed else max(self.least, min(self.natural, WIDE_TEXT))


def blocks(columns: Sequence[Column], width: int) -> list[list[tuple[int, int]]]:
    """(index, width) of the columns of each block; one block where all of them fit beside each other."""
    groups: list[list[int]] = []
    for index in range(len(columns)):
        group = [*(groups[-1] if groups else []), index]
        if groups and _total([columns[i].readable for i in group]) <= width:
            groups[-1] = group
        else:
            groups.append([0, index] if groups and index else [index])
    return [list(zip(group, _shared([columns[i] for i in group], width), strict=True)) for group in groups]


def _shared(columns: Sequence[Column], width: int) -> list[int]:
    """The widths of a block: natural where all fit; else headings give way, then text, the widest first."""
    widths = [column.natural for column in columns]
    while _total(widths) > width:
        spare = [w - column.least if column.fixed else 0 for w, column in zip(widths, columns, strict=True)]
        if not any(spare):
            spare = [w - column.least for w, column in zip(widths, columns, strict=True)]
        if max(spare, default=0) <= 0:
            break  # a single name or number is wider than the screen: it is kept whole
        widest = max((w for w, more in zip(widths, spare, strict=True) if more > 0), default=0)
        widths[next(i for i, w in enumerate(widths) if w == widest and spare[i] > 0)] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
