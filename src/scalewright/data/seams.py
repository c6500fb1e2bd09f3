"""Text that is tokenized in pieces gets the tokens of the whole: neighbours share text, and are joined where
their tokens agree.

    a piece         … the| lob|ster| sle|eps| in| i                the last tokens may be others in the whole
    the next              ▁l|ob|ster| sle|eps| in| its| den …      the first, too: a prefix space, a cut word
                                      └ join: the middle of the longest stretch of equal ids at equal offsets

Where they agree nowhere (a word longer than the shared text) they are tokenized together, up to 4 MiB.
Where two processes meet, both tokenize the text around the cut: what starts before it belongs to the first.
One thing may differ from the whole: where a Unigram model gives two cuts of a word the same probability, and
its scores don't add up exactly, the rounding decides, which depends on the text before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scalewright.data.documents import OVERLAP, REPAIRED, SAFE_TEXT, Fragment
from scalewright.data.word_encoder import Int32, WordEncoder

_AGREE = 4  # different tokens in a stretch that counts: "aaaa" agrees with itself at the wrong place, too
_TOGETHER = 4 << 20  # characters


class _Piece(NamedTuple):
    text: str
    ids: Int32
    done: int = 0  # ids at its beginning that are not its own, or were given


class Seams:
    """Token ids of fragments in their order; those near a fragment's end come with the next."""

    def __init__(self, encoder: WordEncoder, notes: Counter[str]) -> None:
        """Cuts that could not be mended are counted in `notes`."""
        self._encoder, self._notes = encoder, notes
        self._context = ""
        self._held: _Piece | None = None  # the last of a document that goes on

    def __call__(self, fragments: Sequence[Fragment]) -> list[Int32]:
        """The ids that each fragment settles."""
        shared: list[tuple[str, str]] = []
        for fragment in fragments:
            before = "" if fragment.opens else self._context or fragment.before
            after = fragment.after or ""
            before = "" if self._harmless(before, fragment.text) else before
            after = "" if self._harmless(fragment.text, after) else after
            shared.append((before, after))
            ends = fragment.closes or fragment.after is not None
            self._context = "" if ends else fragment.text[-OVERLAP:]
        texts = [b + fragment.text + a for (b, a), fragment in zip(shared, fragments, strict=True)]
        return [
            self._settle(fragment, _Piece(text, ids), len(before), len(after))
            for fragment, text, ids, (before, after) in zip(fragments, texts, self._encoder(texts), shared, strict=True)
        ]

    def _harmless(self, before: str, text: str) -> bool:
        """Whether words of GPT-2's pattern end there, whatever stands on either side."""
        cut = before[-1:] + text[:2]
        return self._encoder.by_words and before[-1:] != "\u180e" and bool(SAFE_TEXT.match(cut, 1))

    def _settle(self, fragment: Fragment, piece: _Piece, before: int, after: int) -> Int32:
        settled: list[Int32] = []
        held, self._held = self._held, None
        if held is not None and before:
            piece = self._join(held, piece, before, settled)
        elif held is not None:
            settled.append(held.ids[held.done :])
        elif before:
            ids, count, gap = self._around(piece.text[:before], piece.text[before:])
            piece = piece._replace(done=count)
            if not np.array_equal(piece.ids[: count + 2], ids[: count + 2]):
                piece = self._encode(piece.text[before + gap :])
        if fragment.closes or fragment.after is not None:
            settled.append(self._end(piece, after) if after else piece.ids[piece.done :])
        else:
            self._held = piece
        return np.concatenate(settled) if settled else np.zeros(0, np.int32)

    def _join(self, held: _Piece, piece: _Piece, overlap: int, settled: list[Int32]) -> _Piece:
        """The piece to hold from here on; what comes before it is settled."""
        if meeting := self._meet(held, piece, overlap):
            settled.append(held.ids[held.done : len(held.ids) - meeting[0]])
            return piece._replace(done=meeting[1])
        if len(held.text) + len(piece.text) <= _TOGETHER:
            both = self._encode(held.text + piece.text[overlap:])
            if not held.done or np.array_equal(both.ids[: held.done + 2], held.ids[: held.done + 2]):
                return both._replace(done=held.done)
        self._notes[REPAIRED["seams"]] += 1
        settled.append(held.ids[held.done :])
        return self._encode(piece.text[overlap:])

    def _meet(self, held: _Piece, piece: _Piece, overlap: int) -> tuple[int, int] | None:
        """(ids of the held piece from the join on, ids of the next before it); null: they agree nowhere."""
        tail, head = held.text[-2 * OVERLAP :], piece.text[: overlap + OVERLAP]
        left, right = self._encoder.tokenizer.encode_batch([tail, head], add_special_tokens=False)
        lefts, rights = _by_start(left, len(tail)), _by_start(right, overlap)
        best: list[int] = []
        run: list[int] = []
        for start in sorted(lefts.keys() | rights.keys()):
            if lefts.get(start) != rights.get(start):
                run = []
                continue
            run.append(start)
            best = max(best, run, key=len)
        if len({token for start in best for token, _ in lefts[start]}) < _AGREE:
            return None
        join, extra = best[len(best) // 2], len(best) // 2
        after = sum(len(tokens) for start, tokens in lefts.items() if start >= join)
        before = sum(len(tokens) for start, tokens in rights.items() if start < join)
        same = np.array_equal(held.ids[-after - extra :], left.ids[-after - extra :])
        same &= np.array_equal(piece.ids[: before + extra], right.ids[: before + extra])
        return (after, before) if same and len(held.ids) - after >= held.done else None

    def _end(self, piece: _Piece, after: int) -> Int32:
        """The ids of a piece whose last characters belong to another process."""
        text, beyond = piece.text[:-after], piece.text[-after:]
        ids, count, gap = self._around(text, beyond)
        rest = len(ids) - count
        if not np.array_equal(piece.ids[-rest - 2 :], ids[-rest - 2 :]):
            return self._encode(text + beyond[:gap]).ids[piece.done :]
        return piece.ids[piece.done : len(piece.ids) - rest]

    def _around(self, left: str, right: str) -> tuple[Int32, int, int]:
        """Ids of the text around a cut, how many start before it, and how far they reach beyond it."""
        left = left[-OVERLAP:]
        encoded = self._encoder.tokenizer.encode(left + right[:OVERLAP], add_special_tokens=False)
        count = sum(start < len(left) for start, _ in encoded.offsets)
        gap = encoded.offsets[count - 1][1] - len(left) if count else 0
        return np.array(encoded.ids, np.int32), count, max(gap, 0)

    def _encode(self, text: str) -> _Piece:
        return _Piece(text, self._encoder([text])[0])


def _by_start(encoding: Any, origin: int) -> dict[int, list[tuple[int, int]]]:
    """(id, end) of tokens by the character at which they start, counted from `origin`."""
    tokens: dict[int, list[tuple[int, int]]] = {}
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        tokens.setdefault(start - origin, []).append((token, end - origin))
    return tokens
