"""Which blocks of the cache are whose: a cache of keys and values is memory for blocks of 64 tokens.

    request 3   block table [7, 8, 9]      tokens 0..63 in block 7, 64..127 in 8, ...
    request 5   block table [7, 8, 12]     the same 128 tokens first: two blocks are shared

    free ──take──► held (count 1) ──share──► count 2 ──release──► ... ──► count 0: free, or, where its tokens are
      ▲                                                                  registered, kept for who has them again
      └────────────────────────── taken for others, oldest first ◄───────┘

(Kwon et al. 2023, arXiv 2309.06180 §4.) A block that a prompt filled is registered under a digest of all tokens up to
its end, and its own tokens are compared when it is looked up. Where a row goes on, the block behind its last one is
preferred, and a new row begins where all of it has room, rows of about one size at equal distances: attention reads
them in one piece then, without a copy (batches.py). The next row goes behind the last one, so that kept prefixes are
overwritten in the order in which they came.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from scalewright.spec.serving import BLOCK

Key = bytes


def block_keys(tokens: Sequence[int]) -> list[Key]:
    """The digest of each whole block of a row, with everything before it."""
    keys, key = list[Key](), b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        key = hashlib.sha256(key + array("q", tokens[start : start + BLOCK]).tobytes()).digest()
        keys.append(key)
    return keys


class Blocks:
    """The blocks of a cache: who holds them, and what prefixes they have."""

    def __init__(self, number: int) -> None:
        self.counts = [0] * number  # rows that hold each
        self._next = 0  # behind where the last row began to be placed
        self._free = set(range(number))  # held by none, and registered under nothing
        self._kept: OrderedDict[int, None] = OrderedDict()  # held by none, but registered: oldest first
        self._of_key: dict[Key, int] = {}
        self._key_of: dict[int, tuple[Key, tuple[int, ...]]] = {}

    @property
    def available(self) -> int:
        """Blocks that no row holds."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> list[int]:
        """Blocks that no row holds, with the keys and values of a prefix."""
        return list(self._kept)

    def take(self, after: int | None = None, size: int = 1) -> int:
        """A block for one row: behind `after` if that's possible, else one from which on it has room for `size`.

        Raises IndexError where all are held.
        """
        if not self.available:
            raise IndexError("every block is held")
        behind = after is not None and after + 1 < len(self.counts) and self.counts[after + 1] == 0
        block = after + 1 if after is not None and behind else self._place(size)
        self._free.discard(block)
        self._kept.pop(block, None)
        self._forget(block)
        self.counts[block] = 1
        return block

    def take_run(self, length: int) -> list[int] | None:
        """So many blocks side by side, of the free ones; None where no such run is."""
        run = 0
        for block in range(len(self.counts)):
            run = run + 1 if block in self._free else 0
            if run == length:
                first = block - length + 1
                for taken in range(first, block + 1):
                    self._free.discard(taken)
                    self.counts[taken] = 1
                return list(range(first, block + 1))
        return None

    def share(self, block: int) -> None:
        """One row more holds it."""
        self.counts[block] += 1
        self._kept.pop(block, None)

    def release(self, table: Sequence[int]) -> None:
        """A row no longer holds its blocks; of those kept, the last of the row goes first."""
        for block in reversed(table):
            self.counts[block] -= 1
            assert self.counts[block] >= 0, f"block {block} is released twice"
            if self.counts[block] == 0:
                if block in self._key_of:
                    self._kept[block] = None
                else:
                    self._free.add(block)

    def register(self, block: int, key: Key, tokens: Sequence[int]) -> None:
        """The block has the keys and values of `tokens`, which end the prefix `key`; the first one stays."""
        if key not in self._of_key:
            self._of_key[key] = block
            self._key_of[block] = (key, tuple(tokens))

    def lookup(self, key: Key, tokens: Sequence[int]) -> int | None:
        """The block that has a prefix's last tokens, or None."""
        block = self._of_key.get(key)
        return block if block is not None and self._key_of[block] == (key, tuple(tokens)) else None

    def is_idle(self, block: int) -> bool:
        """Whether no row holds it."""
        return self.counts[block] == 0

    def _forget(self, block: int) -> None:
        if (registered := self._key_of.pop(block, None)) is not None:
            del self._of_key[registered[0]]

    def _place(self, size: int) -> int:
        """Where a row of `size` blocks has room, at a multiple of a power of two: free blocks from the last place on,
        else blocks that none holds, else where half of it has room."""
        size = min(1 << (size - 1).bit_length(), len(self.counts))
        while True:
            places = range(0, len(self.counts) - size + 1, size)
            order = sorted(places, key=lambda place: (place < self._next, place))
            for allowed in (lambda block: block in self._free, self.is_idle):
                for place in order:
                    if all(map(allowed, range(place, place + size))):
                        self._next = place + size
                        return place
            size = (size + 1) // 2
