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


@dataclass(frozen=True)
class Mark:
    """A part of a word that can't be known: as the script has it, why, and the line."""

    text: str
    why: str
    line: int


@dataclass
class Marks:
    """All of a script, by their numbers."""

    listed: list[Mark] = field(default_factory=list)

    def make(self, text: str, why: str, line: int) -> str:
        """A new mark, or the equal one that there is, as it stands in a word."""
        mark = Mark(text, why, line)
        if mark not in self.listed:
            self.listed.append(mark)
        return f"{OPEN}{self.listed.index(mark)}{CLOSE}"

    def shown(self, text: str) -> str:
        """A word with the script's own text in place of its marks."""
        return MARK.sub(lambda match: self.listed[int(match[1])].text, text)

    def of(self, words: Iterable[str]) -> list[Mark]:
        """The marks in these words."""
        return [self.listed[int(number)] for word in words for number in MARK.findall(word)]


def known(*texts: str) -> bool:
    """Whether there is no mark in any of them."""
    return not any(OPEN in text for text in texts)
