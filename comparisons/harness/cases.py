"""Scripts that try the cases of a folder: their options, and how they end.

python comparisons/NAME.py DIR [--only 01 04] [--out DIR]      exit code 1 when a case is wrong
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from .facts import facts
from .result import Result, facts_text, table

RIGHT = ("right", "not judged")


def case_options(description: str | None, numbers: Iterable[str]) -> argparse.Namespace:
    """`folder` of the cases, `only` those with these numbers, `out` for the result."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(numbers), choices=list(numbers))
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    return parser.parse_args()


def case_result(name: str, title: str, options: argparse.Namespace) -> Result:
    """A result with this machine's facts, in the folder of the options."""
    return Result(name, title, facts(), options.out)


def conclude(result: Result, heads: list[str], rows: list[list[str]]) -> int:
    """Writes the table of the cases, whose last column is the verdict; the exit code."""
    result.say(facts_text(result.data["facts"]), "", table(heads, rows))
    result.close()
    return int(any(row[-1] not in RIGHT for row in rows))
