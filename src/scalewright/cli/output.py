"""The output of verbs: one JSON document for programs, or a table and plain lines for people.

print(...)                   # lines for people: control characters escaped (tests/cli/test_output.py)
with only_answer(json):      # whatever a library prints meanwhile goes to stderr
    result = work()
print_json(result)           # stdout: this and nothing else
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TextIO

from scalewright.spec.common.formatting import printable

NO_LIMIT = 100_000  # characters: the widths of the columns are decided before


def print(*texts: object, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Python's `print` for lines that people read: names in them can't move the cursor or set a title."""
    builtins.print(*map(printable, texts), end=end, file=file, flush=flush)


def print_exact(text: str) -> None:
    """A file's text, or a model's: as it is into a pipe, with control characters escaped on a terminal."""
    builtins.print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def print_json(document: Any) -> None:
    """Writes one JSON document on stdout; a non-finite number becomes null, as JSON has none."""
    builtins.print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "dump"):
        return _plain(value.dump())
    if is_dataclass(value):
        return _plain(vars(value))
    if hasattr(value, "item"):  # a numpy number
        return _plain(value.item())
    return str(value)


@contextlib.contextmanager
def only_answer(active: bool) -> Iterator[None]:
    """While it lasts, what is written to stdout, by children and C libraries too, goes to stderr."""
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is going on, and yields a setter of that text; quiet when stderr is piped."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(plain_markup(what)) as status:
        yield lambda text: status.update(plain_markup(text))


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields what takes (done, of how many) and shows it on a terminal; quiet when stderr is piped."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(plain_markup(what)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def plain_markup(value: Any) -> Any:
    """An answer whose texts rich shows as they are: a model may be called `[/b]`."""
    from rich.markup import escape

    if isinstance(value, str):
        return escape(printable(value))
    if isinstance(value, Mapping):
        return {key: plain_markup(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_markup(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """A table on stdout, as wide as the screen: words wrap, numbers and the first column never do.

    Piped, the width is that of the terminal around the pipe, and 80 where there is none.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from scalewright.cli.columns import Column, blocks

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
                Text(columns[index]),
                justify="right" if numeric[index] else "left",
                min_width=width,
                max_width=width,
            )
        for row in texts:
            table.add_row(*(Text(row[index]) for index, _ in part))
        if number:
            print()
        console.print(table, crop=False, width=NO_LIMIT)


def _is_number(cell: Any) -> bool:
    return cell is None or isinstance(cell, (int, float)) or str(cell).lstrip("+-")[:1].isdigit()
