"""What verbs print: one JSON document for programs, or a table and plain lines for people.

with only_answer(json):      # whatever a library prints meanwhile goes to stderr
    result = work()
print_json(result)           # stdout: this and nothing else
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def print_json(document: Any) -> None:
    """Writes one JSON document on stdout; a non-finite number becomes null, as JSON has none."""
    print(json.dumps(_plain(document), indent=2, allow_nan=False))


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
def working(what: str) -> Iterator[None]:
    """Shows on a terminal that something is going on; quiet when stderr is piped."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """A table on stdout, as wide as it needs; numbers are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
    table = Table(title=title or None, title_justify="left", **style)
    for number, name in enumerate(columns):
        numeric = all(_is_number(row[number]) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # nothing is cut when a program reads it
    console.print(table)


def _is_number(cell: Any) -> bool:
    return cell is None or isinstance(cell, (int, float)) or str(cell).lstrip("+-")[:1].isdigit()


def short(number: float) -> str:
    """A large count as people say it, in three digits: 8.03B, 124M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:
            value = number / size
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f}{letter}"
    return f"{number:g}"
