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
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from scalewright.model.decoder import Decoder
from scalewright.serve.compute import Compute
from scalewright.serve.pages import Piece
from scalewright.spec.serving import BLOCK, blocks_for


class Guessed(NamedTuple):
    """A row whose next tokens are to be guessed."""

    number: int
    tokens: list[int]
    table: list[int]


class Drafter(Protocol):
    """Who guesses."""

    def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
        """Tokens that may follow each row; perhaps none."""


class NGram:
    """What followed the same last tokens, most recently, in the row itself."""

    def __init__(self, most: int = 4, longest: int = 3, within: int = 1024) -> None:
        self.most, self.longest, self.within = most, longest, within

    def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
        """Up to `most` tokens of each, after the longest match of up to `longest` tokens among the last `within`."""
        return [self.after(row.tokens) for row in rows]

    def after(self, tokens: Sequence[int]) -> list[int]:
        """The guess for one row."""
        recent = list(tokens[-self.within :])
        for size in range(min(self.longest, len(recent) - 1), 0, -1):
            tail = recent[-size:]
            for start in range(len(recent) - size - 1, -1, -1):
                if recent[start : start + size] == tail:
                    return recent[start + size : start + size + self.most]
        return []


class DraftModel:
    """A smaller model of the same tokens. Its cache has blocks of the same numbers as the large one's."""

    def __init__(self, model: Decoder, blocks: int, most: int = 4) -> None:
        self.compute, self.most = Compute(model, blocks), most
        self._cached: dict[int, tuple[list[int], list[int]]] = {}  # of a row: tokens in the cache, blocks

    def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
        """The likeliest `most` tokens after each row, fewer where its last block ends."""
        drafts = [_Draft(row, self._held(row), list(row.tokens)) for row in rows]
        for turn in range(self.most):
            self._turn([draft for draft in drafts if len(draft.row.tokens) + turn <= len(draft.row.table) * BLOCK])
        self._cached = {d.row.number: (d.tokens[: d.held], list(d.row.table)) for d in drafts}
        return [draft.tokens[len(draft.row.tokens) :] for draft in drafts]

    def _held(self, row: Guessed) -> int:
        """How many of a row's tokens are in the cache, but for its last."""
        cached, table = self._cached.get(row.number, ([], []))
        pairs = enumerate(zip(cached, row.tokens, strict=False))
        held = min(next((i for i, (a, b) in pairs if a != b), len(cached)), len(row.tokens) - 1)
        return held if table[: blocks_for(held)] == row.table[: blocks_for(held)] else 0

    def _turn(self, drafts: list[_Draft]) -> None:
        """One token more for each, in forwards of many rows."""
        left = list(drafts)
        while left:
            group, size = list[tuple[_Draft, Piece]](), 0
            for draft in left:
                piece = draft.piece()
                if size + piece.count <= self.compute.room:
                    group.append((draft, piece))
                    size += piece.count
            ends = list(accumulate(piece.count for _, piece in group))
            done = [
                (draft, end - 1)
                for (draft, piece), end in zip(group, ends, strict=True)
                if piece.end == len(draft.tokens)
            ]
            tokens = [token for draft, piece in group for token in draft.tokens[piece.start : piece.end]]
            logits = self.compute.forward(tokens, [piece for _, piece in group], [row for _, row in done])
            for draft, piece in group:
                draft.held = piece.end
            for (draft, _), token in zip(done, logits.argmax(dim=-1).tolist(), strict=True):
                draft.tokens.append(token)
                left.remove(draft)


@dataclass(eq=False)
class _Draft:
    """A row with what is guessed behind it; `held`: how many of its tokens are in the cache."""

    row: Guessed
    held: int
    tokens: list[int]

    def piece(self) -> Piece:
        """What is to be computed next, up to the end of a block."""
        count = min(BLOCK - self.held % BLOCK, len(self.tokens) - self.held)
        return Piece(tuple(self.row.table), self.held, count, len(self.tokens))
