"""Which blocks of the cache are whose: a cache of keys and values is memory for blocks of 64 tokens.

    request 3   block table [7, 8, 9]      tokens 0..63 in block 7, 64..127 in 8, ...
    request 5   block table [7, 8, 12]     the same 128 tokens first: two blocks are shared

    free ──take──► held (count 1) ──share──► count 2 ──release──► ... ──► count 0: free, or, where its tokens are
      ▲                                                                  registered, kept for who has them again
      └────────────────────────── taken for others, oldest first ◄───────┘

(Kwon et al. 2023, arXiv 2309.06180 §4.) A block that a prompt filled is registered under a digest of all tokens up to
its end, and its own tokens are compared when it is looked up. Where a row goes on, the block behind its last one is
preferred, and a new row begins where most room is: attention reads a row in one piece then, without a copy.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 64  # tokens of a block, of a chunk of a prompt, and the unit in which prefixes are shared

Key = bytes


def block_keys(tokens: Sequence[int]) -> list[Key]:
    """The digest of each whole block of a row, with everything before it."""
    keys, key = list[Key](), b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        key = hashlib.sha256(key + array("q", tokens[start : start + BLOCK]).tobytes()).digest()
        keys.append(key)
    return keys


def blocks_for(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


class Blocks:
    """The blocks of a cache: who holds them, and what prefixes they have."""

    def __init__(self, number: int) -> None:
        self.counts = [0] * number  # rows that hold each
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

    def take(self, after: int | None = None) -> int:
        """A block for one row: behind `after` if that's possible. Raises IndexError where all are held."""
        if after is not None and after + 1 < len(self.counts) and self.counts[after + 1] == 0:
            block = after + 1
        elif self._free:
            block = self._roomiest()
        elif self._kept:
            block = next(iter(self._kept))
        else:
            raise IndexError("every block is held")
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

    def _roomiest(self) -> int:
        """Where a new row has most room behind it: a third into the longest run of free blocks that follows a held
        one, so that the row before it can still grow; its first block where none comes before."""
        best, start, longest, run = min(self._free), None, 0, 0
        for block in range(len(self.counts) + 1):
            if block in self._free:
                start, run = (block if run == 0 else start), run + 1
                continue
            if run > longest and start is not None:
                longest = run
                best = start if start == 0 else start + run // 3
            run = 0
        return best
