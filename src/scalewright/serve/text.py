"""Tokens to text as they come, and stop strings that may lie across tokens.

    ids -> pieces of text -> hold back the part that may yet become a stop string -> caller

A character can be spread over tokens (byte-level vocabularies), and a token's text can depend on the one
before it, so a piece is the text of a few tokens minus their text without the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]
BROKEN = "\ufffd"  # a decoder's sign for part of a character


class Detokenizer:
    """Text of the tokens after a prompt; pieces come when their last character is complete."""

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt[-8:])  # enough for decoders that look at the token before
        self._start, self._returned = 0, len(self._ids)  # text of ids[start:returned] has been returned

    def add(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._ids.append(token)
        text = self._fresh()
        if not text or text.endswith(BROKEN):
            return ""
        self._start, self._returned = self._returned, len(self._ids)
        return text

    def rest(self) -> str:
        """The text held back: the part of a character that the last tokens began."""
        text = self._fresh()
        self._start, self._returned = self._returned, len(self._ids)
        return text

    def _fresh(self) -> str:
        before = self._decode(self._ids[self._start : self._returned])
        return self._decode(self._ids[self._start :])[len(before) :]


class StopText:
    """Lets text through up to the first stop string, which it removes."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def add(self, piece: str) -> str:
        """The new part of the text that certainly comes before any stop string."""
        self._held += piece
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.stopped = True
            out, self._held = self._held[: min(starts)], ""
            return out
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def rest(self) -> str:
        """The text held back in case a stop string came."""
        out, self._held = self._held, ""
        return out

    def _overlap(self, stop: str) -> int:
        """How many last characters of the text are the first of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
