"""Text as shell: the one place that quotes it, by the standard library's shlex.

    line(["python", "it's", "$(rm)", Expression("$NODE")])      python 'it'"'"'s' '$(rm)' "$NODE"

A word of text reaches its program as it is, whatever it begins with. What the shell puts in when it runs is
an Expression, which only code makes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

split = shlex.split
WIDTH = 90  # of a script's lines, where a command has options to break before


@dataclass(frozen=True)
class Expression:
    """Shell that is expanded when it runs, written in double quotes: `$NODE`, `$(hostname)`."""

    text: str


Word = str | Expression


def quote(word: Word) -> str:
    """A word as shell."""
    return f'"{word.text}"' if isinstance(word, Expression) else shlex.quote(word)


def line(words: Iterable[Word]) -> str:
    """Words as one command."""
    return " ".join(map(quote, words))


def command(words: Iterable[Word]) -> str:
    """Words as one command, over several lines where it is long, which break before options."""
    lines: list[str] = []
    for word in words:
        text = quote(word)
        # an option's value stays with it
        if lines and (len(lines[-1]) + len(text) < WIDTH or not text.startswith("-")):
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return " \\\n  ".join(lines)


def operand(path: str) -> str:
    """A path that no program takes for an option: `-x.yaml` becomes `./-x.yaml`."""
    return f"./{path}" if path.startswith("-") else path
