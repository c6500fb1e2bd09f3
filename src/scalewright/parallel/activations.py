"""Offload of activations: what a block saves for its backward waits in host memory (Rhu et al. 2016, vDNN).

    forward     compute  | block 0 | block 1 | block 2 |          a block's tensors leave while the next runs
                copies             [ 0 out ] [ 1 out ]            (the last block's are there when needed)
    backward    compute  | block 2 | block 1 | block 0 |          and come back while the one above runs
                copies   [  1 in ] [  0 in ]

On a GPU copies run on a stream of their own, to and from pinned memory; on a CPU the same code copies at
once, and the copies are marked as host memory (`parallel/host.py`). Left on the device: parameters, what all
blocks share (masks, rotary tables), and tensors too small to be worth it. Views of one storage are copied
once. With recomputation it is a checkpointed block's input that goes; outputs that `selective` or a budget
keep stay. Numbers come back as they went, with their strides: gradients are bit-equal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from scalewright.parallel.host import host_empty
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_activations

SMALL = 1 << 10  # bytes: below, a copy costs more than it frees


def apply_offload_activations(
    blocks: Sequence[nn.Module], layout: Layout, device: torch.device, *, small: int = SMALL
) -> None:
    """Makes blocks keep what their backward needs in host memory, in place, if layout.offload says so.

    After recomputation and compilation, before FSDP. `blocks` are all that this rank holds; tensors of less
    than `small` bytes stay on the device.
    """
    if not offloads_activations(layout):
        return
    traffic = Traffic(device)
    for block in blocks:
        block.forward = _offloaded(block, block.forward, traffic, small)


def _offloaded(
    block: nn.Module, forward: Callable[..., Any], traffic: Traffic, small: int
) -> Callable[..., Any]:
    def run(x: Tensor, *rest: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(x, *rest, **keywords)
        stays = {_storage(tensor) for tensor in (*block.parameters(), *_tensors((rest, keywords)))}
        cargo = traffic.load(x, stays, small)
        with saved_tensors_hooks(cargo.pack, traffic.unpack):
            out = forward(x, *rest, **keywords)
        traffic.depart(cargo, out)
        return out

    return run


class Traffic:
    """All cargoes of one rank, and the stream they travel on.

    Memory is allocated and freed on compute's stream alone. That waits for a copy before it frees what the
    copy reads, and before it reads what the copy wrote; a copy waits for what compute was given before it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.leaving: Cargo | None = None  # of the newest forward: still on the device
        self.present: Cargo | None = None  # of the backward that runs
        self.arriving: dict[Cargo, list[Tensor]] = {}  # on their way in; held until compute waited for them
        # The newest block's output, and its cargo. Weak: a dead storage's address may come again.
        self.last: tuple[weakref.ref[torch.UntypedStorage], Cargo] | None = None

    def load(self, x: Tensor, stays: set[int], small: int) -> Cargo:
        """The cargo of a block that begins; before it comes that of the block that made its input."""
        for cargo in list(self.arriving):  # of a graph that was dropped in the middle of its backward
            self.settle(cargo)
        before = None
        if self.last is not None:
            output = self.last[0]()
            before = self.last[1] if output is not None and output._cdata == _storage(x) else None
        return Cargo(self, stays, small, before)

    def depart(self, cargo: Cargo, out: Any) -> None:
        """After a block's forward: frees what the block before sent off; its copies had this block's time."""
        cargo.close()
        if self.leaving is not None:
            self.leaving.leave()
        self.leaving = cargo
        if self.stream is None:  # copied already
            cargo.leave()
        self.last = (weakref.ref(out.untyped_storage()), cargo) if isinstance(out, Tensor) else None

    def unpack(self, packed: Tensor | Handle) -> Tensor:
        """A saved tensor, asked for by a backward."""
        if isinstance(packed, Tensor):
            return packed
        self.begin(packed.crate.cargo)
        return packed.open()

    def begin(self, cargo: Cargo) -> None:
        """A block's backward begins: its tensors are awaited, and the next ones are sent for."""
        if self.present is cargo:
            return
        if self.leaving is not None and self.leaving is not cargo:
            self.leaving.leave()
        self.leaving = None
        if self.present is not None:  # a split backward asks again for what is left
            self.present.leave()
        self.present = cargo
        cargo.arrive()
        self.settle(cargo)
        if cargo.before is not None:
            cargo.before.arrive()

    def settle(self, cargo: Cargo) -> None:
        """Compute waits until a cargo has arrived."""
        if self.arriving.pop(cargo, None) is not None:
            self.wait(cargo.arrival)

    def copying(self) -> AbstractContextManager[Any]:
        """Copies inside go to the side stream, after all that compute has been given so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """This point of the side stream."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, event: torch.cuda.Event | None) -> None:
        """What compute is given from now on waits for that point."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


class Cargo:
    """What one block saved in one forward."""

    def __init__(self, traffic: Traffic, stays: set[int], small: int, before: Cargo | None) -> None:
        self.traffic, self.stays, self.small, self.before = traffic, stays, small, before
        self.loading: dict[tuple[int, torch.dtype], Crate] = {}
        self.crates: list[weakref.ref[Crate]] = []  # a crate lives as long as the graph holds a handle to it
        self.departure: torch.cuda.Event | None = None
        self.arrival: torch.cuda.Event | None = None

    def pack(self, tensor: Tensor) -> Tensor | Handle:
        """Sends a saved tensor's storage off, unless it has gone already or stays."""
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        there = tensor.device.type == self.traffic.device.type
        if not there or storage._cdata in self.stays or storage.nbytes() < self.small:
            return tensor
        crate = self.loading.get(key := (storage._cdata, tensor.dtype))
        if crate is None:
            flat = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
            host = host_empty(flat.shape, flat.dtype, tensor.device)
            with self.traffic.copying():
                host.copy_(flat, non_blocking=True)
            crate = self.loading[key] = Crate(self, host, flat)
        return Handle(crate, tensor.shape, tensor.stride(), tensor.storage_offset())

    def close(self) -> None:
        """The forward is over."""
        self.departure = self.traffic.mark()
        self.crates = [weakref.ref(crate) for crate in self.loading.values()]
        self.loading, self.stays = {}, set()

    def leave(self) -> None:
        """Frees the device's copies."""
        self.traffic.wait(self.departure)
        for crate in self._alive():
            crate.device = None

    def arrive(self) -> None:
        """Starts to bring back what isn't on the device."""
        missing = [crate for crate in self._alive() if crate.device is None]
        if not missing:
            return
        arriving = [torch.empty_like(crate.host, device=self.traffic.device) for crate in missing]
        with self.traffic.copying():
            for crate, device in zip(missing, arriving, strict=True):
                crate.device = device.copy_(crate.host, non_blocking=True)
        self.arrival = self.traffic.mark()
        self.traffic.arriving[self] = arriving

    def _alive(self) -> list[Crate]:
        return [crate for reference in self.crates if (crate := reference()) is not None]


@dataclass(eq=False)
class Crate:
    """One storage, flat: in host memory, and on the device while it is needed there."""

    cargo: Cargo
    host: Tensor
    device: Tensor | None


@dataclass(eq=False, frozen=True, slots=True)
class Handle:
    """What autograd holds in place of a tensor: where its numbers are, and its shape."""

    crate: Crate
    size: torch.Size
    stride: Sequence[Any]
    offset: Any

    def open(self) -> Tensor:
        """The tensor, on the device."""
        assert self.crate.device is not None, "its cargo has arrived"
        return self.crate.device.as_strided(self.size, self.stride, self.offset)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
