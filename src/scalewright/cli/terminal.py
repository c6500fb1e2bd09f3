"""Blocks and tables on the terminal: words wrap, numbers and names never do.

all fits                       every column as wide as its longest cell
text columns can give way      they wrap between words, the rest stays
nothing can give way any more  the table continues below, in blocks that repeat the first column:

    ranks   parameters   gradients            ranks   activations   peak
    0-15          1.35        0.67     then   0-15           3.10   5.92

Lines are wrapped at the screen's width, and left whole in a pipe.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from scalewright.cli.output import print
from scalewright.spec.common.formatting import printable

if TYPE_CHECKING:
    from scalewright.report.present.blocks import Block, Line, Shown, Stacks

NO_LIMIT = 100_000  # characters: the widths of the columns are decided before
WIDEST = 110  # of a line of text
LABEL, NAME, LONGEST = 9, 26, 28  # columns of a label, of a bar's name, and of the longest bar
STYLES = {"good": "green", "warn": "yellow", "bad": "red", "": ""}
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
        return max(map(_cells, (self.name, *self.cells)), default=0)

    @property
    def least(self) -> int:
        """The width below which a number, a name or a word would be cut; headings wrap between words."""
        heading = _longest_word(self.name)
        if self.fixed:
            return max([heading, *map(_cells, self.cells)])
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


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return max(map(_cells, text.split()), default=0)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table on stdout, as wide as the screen: words wrap, numbers and the first column never do.

    Piped, the width is that of the terminal around the pipe, and 80 where there is none.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, columns = Console(), [printable(name, keep="") for name in columns]
    texts = [["" if cell is None else printable(cell) for cell in row] for row in rows]
    numeric = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    made = [
        Column(name, tuple(row[index] for row in texts), numeric[index] or index == 0)
        for index, name in enumerate(columns)
    ]
    if title:
        console.print(Text(printable(title), style="italic"), soft_wrap=not console.is_terminal)
    for number, part in enumerate(blocks(made, console.width)):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for index, width in part:
            table.add_column(
                Text(columns[index]), justify="right" if numeric[index] else "left", min_width=width, max_width=width
            )
        for row in texts:
            table.add_row(*(Text(row[index]) for index, _ in part))
        if number:
            print()
        console.print(table, crop=False, width=NO_LIMIT)


def _is_number(cell: object) -> bool:
    return cell is None or isinstance(cell, (int, float)) or str(cell).lstrip("+-")[:1].isdigit()


def show(shown: Shown, everything: bool = False, rest: str = "--all shows the rest") -> None:
    """Prints an answer: its first lines, then its blocks; all of them, or those that most people need.

    `rest`: how one gets the others.
    """
    from scalewright.report.present.blocks import Line, is_cut

    _say(shown.title, "bold")
    cut = [_show_line(line, everything) for line in shown.head]
    after_line = False  # then a line follows without a blank one between
    for block in shown.blocks if everything else shown.brief:
        if not (after_line and isinstance(block, Line)):
            print()
        _show_block(block, everything)
        after_line = isinstance(block, Line)
    if not everything and (any(cut) or any(map(is_cut, shown.blocks))):
        _say(rest, "dim")


def _show_block(block: Block, everything: bool) -> None:
    from scalewright.report.present.blocks import Bars, Line, Note, Stacks, Table, left_out

    if isinstance(block, Line):
        _show_line(block, everything)
        return
    more = 0 if everything else left_out(block)
    if isinstance(block, Table):
        print_table(*block.cells(everything), block.title)
    else:
        if block.title:
            _say(block.title, "bold")
        if isinstance(block, Bars):
            for row, share in block.shares(everything):
                percent = "" if block.beside else f"  {100 * share:>3.0f}%"
                figures = f"  {row.name:<{NAME}} {row.text:>9}{percent}  "
                _print((figures, ""), (bar(share, _room(figures)), "dim" if row.part < 0 else "cyan"))
        elif isinstance(block, Stacks):
            _show_stacks(block, len(block.rows) - more)
        elif isinstance(block, Note):
            for line in block.lines[: len(block.lines) - more]:
                _say(line, indent="  ")
        else:
            print(textwrap.indent(block.text, "  "))
    for line in (f"  ... {more:,} more" if more else "", getattr(block, "note", "")):
        if line:
            _say(line, "dim")


def _show_line(line: Line, everything: bool) -> bool:
    """A label and its text, in lines below each other; of a list one line, where the rest isn't asked for. Returns
    whether something of it was left out."""
    style, begin = STYLES[line.tone], f"{line.label:<{LABEL}} "
    text = printable(line.text, keep="")
    if line.label in ("next", "or") and "scalewright " in text:  # a command stays one, where a terminal breaks it
        lines = [begin + text]
    elif line.listed and not everything:
        lines = [begin + textwrap.shorten(text, _width() - len(begin), placeholder=" ...")]
    else:
        lines = _wrapped(text, begin, " " * len(begin))
    _print((line.label, "bold"), (lines[0][len(line.label) :], style))
    for more in lines[1:]:
        _print((more, style))
    return lines[0].endswith(" ...") and not text.endswith(" ...")


def _show_stacks(stacks: Stacks, many: int) -> None:
    """A bar a row, parts of one sign as one; the edges are rounded, so that it is always full."""
    signs = list(dict.fromkeys(part.sign for part in stacks.parts))
    names = [next(part.name for part in stacks.parts if part.sign == sign).partition(":")[0] for sign in signs]
    rows = [
        (name, [sum(value for value, part in zip(values, stacks.parts, strict=True) if part.sign == sign)
                for sign in signs])
        for name, values in stacks.rows[:many]
    ]  # fmt: skip
    figures = [
        "  ".join(f"{name.partition(' (')[0]} {share:.1f}%"
                  for name, share in zip(names, shares, strict=True) if share >= 0.05)
        for _, shares in rows
    ]  # fmt: skip
    length = _room(" " * 12 + max(figures, key=len, default=""))
    for (name, shares), text in zip(rows, figures, strict=True):
        drawn = ""
        for sign, done in zip(signs, accumulate(shares), strict=True):
            drawn += sign * (round(done * length / 100) - len(drawn))
        print(f"{name:>8.24}  {drawn}  {text}")
    _say("   ".join(f"{sign} {name}" for sign, name in zip(signs, names, strict=True)), "dim")


def _room(figures: str) -> int:
    return max(min(LONGEST, _width() - len(figures)), 6)


def bar(share: float, width: int = LONGEST) -> str:
    """A bar of eighths of a character; never empty."""
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _say(text: str, style: str = "", indent: str = "") -> None:
    for line in _wrapped(text, indent, indent + "  "):
        _print((line, style))


def _width() -> int:
    """Columns of the terminal, or as COLUMNS has them; no limit where stdout is piped."""
    columns = shutil.get_terminal_size((NO_LIMIT, 24)).columns
    return columns if columns == NO_LIMIT else min(columns, WIDEST)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """A text in lines of the screen's width; whole in a pipe."""
    wrapper = textwrap.TextWrapper(_width(), initial_indent=first, subsequent_indent=rest)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(printable(text, keep="")) or [first]


def _print(*parts: tuple[str, str]) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.assemble(*parts), soft_wrap=True)
