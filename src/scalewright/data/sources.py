"""A user's items in their order: a dataset with numbers, or a stream that is read from its beginning.

    Indexed     data[i]: every epoch in another order (train), which is a pure function of seed and epoch
    Streamed    for item in data: as it comes; an epoch opens it again (and calls its `set_epoch(n)`)

Both can be opened at a place: an indexed one at once, a stream from an earlier state of its own (the
`state_dict` of Hugging Face's), or by reading over the items up to there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np

from scalewright.data.order import Permutation, mix


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
        part = pending.pop()
        if part is None:
            continue
        if "Shuffled" in type(part).__name__:
            return True
        pending += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or [])]
    return False
