"""Lines of JSON that hold no text: the first one stops `prepare`, or they are left out and listed.

{"text": "fine"}
{"text": "cut in ha          not JSON: line 2, byte 17
{"body": "fine"}             no key 'text': line 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalewright.spec.errors import UserError

COUNT = "bad lines"  # in a piece's notes, beside one entry for each line that is listed
LISTED = "bad line: "
MOST_LISTED = 1000  # of a piece


@dataclass
class BadLines:
    """The bad lines of one range of a file. `lines_before` counts the lines before the range: called once,
    and only when there is a bad line."""

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
