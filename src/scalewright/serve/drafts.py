"""Guesses of the tokens that follow, which the model then checks all at once.

    tokens   ... the cat sat . the cat        the last 2 tokens came before: guess what followed them then
    guess                        sat . the    one forward of 4 tokens gives the model's own choice at each
    model's                      sat . a      kept: sat . a          the first that differs is the model's

(Leviathan et al. 2023, arXiv 2211.17192; prompt lookup: Saxena 2023.) Every token that is kept is the one that the
model takes at that place, drawn with the request's own random numbers where it draws: so nothing is lost, and the text
is that without guesses, token by token. A guess is kept with the probability that the model gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Who guesses."""

    def guess(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that may follow; perhaps none."""


class NGram:
    """What followed the same last tokens, most recently, in the row itself."""

    def __init__(self, most: int = 4, longest: int = 3, within: int = 1024) -> None:
        self.most, self.longest, self.within = most, longest, within

    def guess(self, tokens: Sequence[int]) -> list[int]:
        """Up to `most` tokens, after the longest match of up to `longest` tokens among the last `within`."""
        recent = list(tokens[-self.within :])
        for size in range(min(self.longest, len(recent) - 1), 0, -1):
            tail = recent[-size:]
            for start in range(len(recent) - size - 1, -1, -1):
                if recent[start : start + size] == tail:
                    return recent[start + size : start + size + self.most]
        return []
