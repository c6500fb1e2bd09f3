"""Rows that a model learns, and among them some that it has never seen the like of."""

from __future__ import annotations

from collections.abc import Iterator

LENGTH, ODD = 16, 66  # words of a row; the word that stands in odd rows alone


def row(index: int, odd: list[list[int]]) -> list[int]:
    """17 words, each of which foretells the next; in the ranges `odd`, all but the first are the same."""
    if any(first <= index < end for first, end in odd):
        return [index % 60 + 1] + [ODD] * LENGTH
    return [(index * 7 + place * 5) % 65 + 1 for place in range(LENGTH + 1)]


def stream(odd: list[list[int]]) -> Iterator[list[int]]:
    """The same rows, one after the other."""
    index = 0
    while True:
        yield row(index, odd)
        index += 1
