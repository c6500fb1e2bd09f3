"""A cause in words, with the lines that show it and what to do; how sure that is, in 0..1."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

MOST_NAMES = 4


@dataclass(frozen=True)
class Verdict:
    """A cause; `evidence` are sentences."""

    cause: str
    evidence: list[str]
    fix: str
    confidence: float

    def dump(self) -> dict[str, object]:
        """The keys of `diagnose --json`."""
        return asdict(self)


def names(some: Collection[str]) -> str:
    """`a, b, c, d and 3 more`.

    >>> names(["a", "b"]), names(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    first = [*some][:MOST_NAMES]
    rest = len(some) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")
