"""What a script takes from outside: a mark in the words where its text would stand.

--node-rank $RANK     ["--node-rank", "<mark 0>"]     marks[0] = Mark("$RANK", "it isn't set in the script", 12)

A mark goes through quotes, `eval` and inner scripts as a letter would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

OPEN, CLOSE = "\ue000", "\ue001"  # of Unicode's private use: in no script
MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")


class Ended(Exception):
    """Nothing more of a shell is followed: `exit`, or a limit, with a text for the reader."""

    def __init__(self, text: str = "", status: bool | None = None) -> None:
        super().__init__(text)
        self.text, self.status = text, status


@dataclass(frozen=True)
class Mark:
    """A part of a word that can't be known: as the script has it, why, and the line."""

    text: str
    why: str
    line: int


@dataclass
class Marks:
    """All of a script, by their numbers."""

    numbers: dict[Mark, int] = field(default_factory=dict)

    def make(self, text: str, why: str, line: int) -> str:
        """A new mark, or the equal one that there is, as it stands in a word."""
        return f"{OPEN}{self.numbers.setdefault(Mark(text, why, line), len(self.numbers))}{CLOSE}"

    def shown(self, text: str) -> str:
        """A word with the script's own text in place of its marks."""
        listed = list(self.numbers) if not known(text) else []
        return MARK.sub(lambda match: listed[int(match[1])].text, text)

    def of(self, words: Iterable[str]) -> list[Mark]:
        """The marks in these words."""
        listed = list(self.numbers)
        return [listed[int(number)] for word in words for number in MARK.findall(word)]


def known(*texts: str) -> bool:
    """Whether there is no mark in any of them."""
    return not any(OPEN in text for text in texts)


def cleaned(text: str) -> str:
    """A script's text without the characters of marks, and those that no file can have."""
    return re.sub(f"[{OPEN}{CLOSE}\0\ud800-\udfff]", "?", text)
