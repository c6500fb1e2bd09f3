"""Bytes of live tensors, by kind, now and at their peak: memory, measured where no allocator counts it.

    an operator gives a tensor --> its storage is counted once, whatever views there are of it
    the storage dies            --> its weak reference calls back
    FSDP empties or fills it    --> `resize_` is wrapped, and counts it anew

A storage has one of six kinds. Weights, gradients and optimizer states are registered; of the rest

    activations     what forwards make (recomputed ones too), until its last use
    buffers         what data parallelism gathers into and reduces from, and a module's own buffers
    other           what backwards and updates make for a moment

Tensors that offloading keeps in host memory are left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Bytes = dict[Kind, int]


def plain(by_kind: Bytes) -> dict[str, int]:
    """A copy whose keys are any words."""
    return {kind: by_kind[kind] for kind in KINDS}


@dataclass
class Window:
    """The highest counts since it was opened."""

    at_peak: Bytes  # every kind at the moment when their sum was highest
    most: Bytes  # every kind at its own highest
    peak: int = field(init=False)

    def __post_init__(self) -> None:
        self.peak = sum(self.at_peak.values())


@dataclass
class _Entry:
    reference: weakref.ref[torch.UntypedStorage]
    kind: Kind
    size: int


class LiveBytes(AbstractContextManager["LiveBytes"]):
    """Counts storages; `offloaded(tensor)`: whether it is in host memory, which isn't counted.

    While it is entered, a storage that changes its size is counted anew.
    """

    def __init__(self, offloaded: Callable[[Tensor], bool] | None = None) -> None:
        self.now: Bytes = dict.fromkeys(KINDS, 0)
        self.total = 0
        self.windows = [Window(dict(self.now), dict(self.now))]
        self.offloaded = offloaded
        self._entries: dict[int, _Entry] = {}

    def count(self, tensor: Tensor, kind: Kind) -> None:
        """Counts a tensor's storage as `kind`, unless it is counted already."""
        storage = _local(tensor).untyped_storage()
        if storage._cdata not in self._entries:
            self._add(tensor, storage, kind)

    def tag(self, tensor: Tensor, kind: Kind, over: Iterable[Kind] = KINDS) -> None:
        """Sets the kind of a tensor's storage; `over`: only if its kind is one of these so far."""
        storage = _local(tensor).untyped_storage()
        entry = self._entries.get(storage._cdata)
        if entry is None:
            self._add(tensor, storage, kind)
        elif self.offloaded is not None and self.offloaded(_local(tensor)):  # it went to the host by now
            self._change(entry, 0)
        elif entry.kind != kind and entry.kind in over:
            self.now[entry.kind] -= entry.size
            self.now[kind] += entry.size
            entry.kind = kind
            self._raise_windows(kind)
            for window in self.windows:
                if self.total == window.peak:  # nothing was made or freed since: the same moment, named better
                    window.at_peak = dict(self.now)

    def kind(self, tensor: Tensor) -> Kind | None:
        """The kind of a tensor's storage; None if it isn't counted."""
        entry = self._entries.get(_local(tensor).untyped_storage()._cdata)
        return None if entry is None else entry.kind

    def snapshot(self) -> dict[str, int]:
        """Bytes by kind, now."""
        return plain(self.now)

    def open(self) -> Window:
        """A window over what follows; `close` it in any order."""
        window = Window(dict(self.now), dict(self.now))
        self.windows.append(window)
        return window

    def close(self, window: Window) -> Window:
        """Ends a window, and returns it."""
        self.windows = [other for other in self.windows if other is not window]
        return window

    def _add(self, tensor: Tensor, storage: torch.UntypedStorage, kind: Kind) -> None:
        if self.offloaded is not None and self.offloaded(_local(tensor)):
            return
        key = storage._cdata

        def gone(_: Any) -> None:
            self._change(self._entries.pop(key), 0)

        entry = _Entry(weakref.ref(storage, gone), kind, 0)
        self._entries[key] = entry
        self._change(entry, storage.nbytes())

    def _change(self, entry: _Entry, size: int) -> None:
        difference, entry.size = size - entry.size, size
        self.now[entry.kind] += difference
        self.total += difference
        if difference > 0:
            self._raise_windows(entry.kind)

    def _raise_windows(self, kind: Kind) -> None:
        for window in self.windows:
            if self.now[kind] > window.most[kind]:
                window.most[kind] = self.now[kind]
            if self.total > window.peak:
                window.peak, window.at_peak = self.total, dict(self.now)

    def __enter__(self) -> LiveBytes:
        self._resize = original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if (entry := self._entries.get(storage._cdata)) is not None:
                self._change(entry, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
