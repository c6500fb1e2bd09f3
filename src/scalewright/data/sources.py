"""A user's items in their order: a dataset with numbers, or a stream that is read from its beginning.

    Indexed     data[i]: every epoch in another order (train), which is a pure function of seed and epoch
    Streamed    for item in data: as it comes; an epoch opens it again (and calls its `set_epoch(n)`)

Both can be opened at a place: an indexed one at once, a stream from an earlier state of its own (the `state_dict` of
Hugging Face's), or by reading over the items up to there.

Orders are permutations that are computed, not stored: a table for 10^8 samples would take 800 MB. A Feistel network
turns an index into another by a few multiplications. It is a bijection on 2^b numbers for any key:

    left, right  ──round──►  right, left XOR hash(right, key)          (Luby & Rackoff 1988)

and a number that falls outside 0..n-1 goes through again until it falls inside ("cycle walking",
Black & Rogaway 2002), which keeps it a bijection on 0..n-1. Nothing here depends on a library's random
generator, so an order stays the same in every version of everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Items(Protocol):
    """Items of one epoch after another."""

    length: int | None  # of an epoch; null: unknown, or endless

    def open(self, epoch: int, ordinal: int, state: Any = None) -> Iterator[Any]:
        """The epoch's items from its `ordinal`-th on; `state` is the result of `state()` there."""
        ...

    def state(self) -> Any:
        """The open stream's position, as JSON data; null: it has only `ordinal`."""
        ...


class Indexed:
    """Items by number."""

    def __init__(self, get: Callable[[int], Any], length: int | None, seed: int, shuffle: bool) -> None:
        """`length` null: a function of any number, whose items come as 0, 1, 2, ..."""
        self.get, self.length, self.seed, self.shuffle = get, length, seed, shuffle

    def number(self, epoch: int, ordinal: int) -> int:
        """Which item is the epoch's `ordinal`-th."""
        if self.length is None or not self.shuffle:
            return ordinal
        order = Permutation(self.length, mix(self.seed, epoch, 3))
        return int(order(np.array([ordinal], dtype=np.int64))[0])

    def open(self, epoch: int, ordinal: int, state: Any = None) -> Iterator[Any]:
        while self.length is None or ordinal < self.length:
            yield self.get(self.number(epoch, ordinal))
            ordinal += 1

    def state(self) -> Any:
        return None


class Streamed:
    """Items as they come."""

    length: int | None = None

    def __init__(self, make: Callable[[], Any], first: Any) -> None:
        """`first` is a result of `make`; a generator, read once only, is made anew for each epoch."""
        self._make, self._data = make, first
        self._single_use = hasattr(first, "__next__")
        self._fresh = True

    def open(self, epoch: int, ordinal: int, state: Any = None) -> Iterator[Any]:
        if self._single_use and not self._fresh:
            self._data = self._make()
        self._fresh = False
        if callable(getattr(self._data, "set_epoch", None)):
            self._data.set_epoch(epoch)
        if state is not None:
            self._data.load_state_dict(state)
            return iter(self._data)
        return islice(iter(self._data), ordinal, None)

    def state(self) -> Any:
        """The stream's own state, if it has one that JSON can hold.

        Not that of a shuffled Hugging Face stream: it leaves out the examples that wait in its buffer.
        """
        if not callable(getattr(self._data, "state_dict", None)) or _has_buffer(self._data):
            return None
        state = self._data.state_dict()
        try:
            return json.loads(json.dumps(state)) if state else None
        except (TypeError, ValueError):
            return None


def _has_buffer(data: Any) -> bool:
    """Whether a Hugging Face stream shuffles in a buffer, at any depth of its inner streams."""
    pending = [getattr(data, "_ex_iterable", None)]
    while pending:
        if (part := pending.pop()) is None:
            continue
        if "Shuffled" in type(part).__name__:
            return True
        pending += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or [])]
    return False


_MASK = (1 << 64) - 1
_ROUNDS = 6  # four are a strong permutation of a large domain; two more for the small ones
_SMALLEST_BITS = 6  # a domain of a few values has too few keys' worth of permutations

# The constants of SplitMix64 (Steele, Lea & Flood 2014).
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(*numbers: int) -> int:
    """A 64-bit hash of integers; a pure function, the same on every machine."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + _GAMMA & _MASK
        state = (state ^ (state >> 30)) * _FIRST & _MASK
        state = (state ^ (state >> 27)) * _SECOND & _MASK
        state ^= state >> 31
    return state


class Permutation:
    """A shuffle of 0..size-1 that is a pure function of (size, key) and takes no memory."""

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} elements")
        self.size = size
        bits = max((size - 1).bit_length(), _SMALLEST_BITS)
        self._low = np.uint64(bits // 2)  # bits of the right half
        self._high = np.uint64(bits - bits // 2)
        self._keys = [np.uint64(mix(key, number)) for number in range(_ROUNDS)]

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each index goes; int64 of the same shape. Indices must lie in 0..size-1."""
        if self.size == 1:
            return np.zeros_like(indices)
        values = self._network(indices.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            again = self._network(values[outside])
            values[outside] = again
            outside = outside[again >= self.size]
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        one = np.uint64(1)
        low, high = self._low, self._high
        right, left = values & ((one << low) - one), values >> low
        for key in self._keys:  # the halves change places, and widths, every round
            left, right = right, left ^ (_scramble(right + key) & ((one << high) - one))
            low, high = high, low
        return (left << low) | right


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64, element by element; the top half of the product moved down."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))
