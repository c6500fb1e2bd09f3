"""Offload of activations: tensors that a block saves for backward wait on the host (Rhu et al. 2016, vDNN).

    forward     compute  | block 0 | block 1 | block 2 |          a block's tensors leave while the next runs
                copies             [ 0 out ] [ 1 out ]            (the last block's are there when needed)
    backward    compute  | block 2 | block 1 | block 0 |          and come back while the one above runs
                copies   [  1 in ] [  0 in ]

On a GPU copies run on a stream of their own, to and from pinned memory; on a CPU the same code copies at once, and the
copies are marked as host memory (offload_states.py). Parameters, tensors that all blocks share (masks, rotary tables)
and small ones stay on the device. Views of one storage are copied once. With recomputation it is a checkpointed block's
input that goes; outputs that are kept stay. Numbers come back as they went: gradients are bit-equal.
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

from scalewright.parallel.offload_states import host_empty
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_activations

SMALL = 1 << 10  # bytes: below, a copy costs more than it frees


def apply_offload_activations(
    blocks: Sequence[nn.Module], layout: Layout, device: torch.device, *, small: int = SMALL
) -> None:
    """Makes blocks keep the tensors for their backward in host memory, in place, under `layout.offload`.

    After recomputation and compilation, before FSDP. `blocks` are all that this rank holds; tensors of less
    than `small` bytes stay on the device.
    """
    if not offloads_activations(layout):
        return
    offloader = Offloader(device)
    for block in blocks:
        block.forward = _offloaded(block, block.forward, offloader, small)


def _offloaded(block: nn.Module, forward: Callable[..., Any], offloader: Offloader, small: int) -> Callable[..., Any]:
    def run(x: Tensor, *rest: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(x, *rest, **keywords)
        stays = {_storage(tensor) for tensor in (*block.parameters(), *_tensors((rest, keywords)))}
        saved = offloader.begin_forward(x, stays, small)
        with saved_tensors_hooks(saved.pack, offloader.unpack):
            out = forward(x, *rest, **keywords)
        offloader.end_forward(saved, out)
        return out

    return run


class Offloader:
    """The saved tensors of all blocks of one rank, and the stream that copies them.

    Memory is allocated and freed on compute's stream alone. That waits for a copy before it frees the copy's
    source, and before it reads its result; a copy waits for all work that compute was given before it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.newest: SavedTensors | None = None  # of the newest forward: still on the device
        self.current: SavedTensors | None = None  # of the backward that runs
        self.prefetched: dict[SavedTensors, list[Tensor]] = {}  # held until compute has waited for the copies
        # The newest block's output and saved tensors. Weak: a dead storage's address may come again.
        self.last: tuple[weakref.ref[torch.UntypedStorage], SavedTensors] | None = None

    def begin_forward(self, x: Tensor, stays: set[int], small: int) -> SavedTensors:
        """The saved tensors of a block that begins; their `previous` are those of the block that made x."""
        for saved in list(self.prefetched):  # of a graph that was dropped in the middle of its backward
            self.wait_for(saved)
        previous = None
        if self.last is not None:
            output = self.last[0]()
            previous = self.last[1] if output is not None and output._cdata == _storage(x) else None
        return SavedTensors(self, stays, small, previous)

    def end_forward(self, saved: SavedTensors, out: Any) -> None:
        """After a block's forward: frees the previous block's tensors, whose copies had this one's time."""
        saved.close()
        if self.newest is not None:
            self.newest.free()
        self.newest = saved
        if self.stream is None:  # copied already
            saved.free()
        self.last = (weakref.ref(out.untyped_storage()), saved) if isinstance(out, Tensor) else None

    def unpack(self, packed: Tensor | PackedTensor) -> Tensor:
        """The saved tensor that a backward needs."""
        if isinstance(packed, Tensor):
            return packed
        self.begin_backward(packed.buffer.block)
        return packed.unpack()

    def begin_backward(self, saved: SavedTensors) -> None:
        """A block's backward begins: waits for its tensors, and prefetches those of the block before."""
        if self.current is saved:
            return
        if self.newest is not None and self.newest is not saved:
            self.newest.free()
        self.newest = None
        if self.current is not None:  # a split backward will need the rest of them again
            self.current.free()
        self.current = saved
        saved.prefetch()
        self.wait_for(saved)
        if saved.previous is not None:
            saved.previous.prefetch()

    def wait_for(self, saved: SavedTensors) -> None:
        """Compute waits until a block's tensors are back."""
        if self.prefetched.pop(saved, None) is not None:
            self.wait(saved.copied_in)

    def copying(self) -> AbstractContextManager[Any]:
        """Copies inside go to the side stream, after all that compute has been given so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def record(self) -> torch.cuda.Event | None:
        """This point of the side stream."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Work that compute is given from now on waits for that point."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


class SavedTensors:
    """The tensors that one block saved in one forward."""

    def __init__(self, offloader: Offloader, stays: set[int], small: int, previous: SavedTensors | None) -> None:
        self.offloader, self.stays, self.small, self.previous = offloader, stays, small, previous
        self.packing: dict[tuple[int, torch.dtype], HostBuffer] = {}  # by storage, during the forward
        self.buffers: list[weakref.ref[HostBuffer]] = []  # weak: they live as long as the graph needs them
        self.copied_out: torch.cuda.Event | None = None
        self.copied_in: torch.cuda.Event | None = None

    def pack(self, tensor: Tensor) -> Tensor | PackedTensor:
        """Copies a saved tensor's storage to the host, unless that is done already or it stays."""
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        on_device = tensor.device.type == self.offloader.device.type
        if not on_device or storage._cdata in self.stays or storage.nbytes() < self.small:
            return tensor
        buffer = self.packing.get(key := (storage._cdata, tensor.dtype))
        if buffer is None:
            flat = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
            host = host_empty(flat.shape, flat.dtype, tensor.device)
            with self.offloader.copying():
                host.copy_(flat, non_blocking=True)
            buffer = self.packing[key] = HostBuffer(self, host, flat)
        return PackedTensor(buffer, tensor.shape, tensor.stride(), tensor.storage_offset())

    def close(self) -> None:
        """The forward is over."""
        self.copied_out = self.offloader.record()
        self.buffers = [weakref.ref(buffer) for buffer in self.packing.values()]
        self.packing, self.stays = {}, set()

    def free(self) -> None:
        """Frees the device's copies."""
        self.offloader.wait(self.copied_out)
        for buffer in self._alive():
            buffer.device = None

    def prefetch(self) -> None:
        """Starts to copy back the tensors that aren't on the device."""
        missing = [buffer for buffer in self._alive() if buffer.device is None]
        if not missing:
            return
        tensors = [torch.empty_like(buffer.host, device=self.offloader.device) for buffer in missing]
        with self.offloader.copying():
            for buffer, device in zip(missing, tensors, strict=True):
                buffer.device = device.copy_(buffer.host, non_blocking=True)
        self.copied_in = self.offloader.record()
        self.offloader.prefetched[self] = tensors

    def _alive(self) -> list[HostBuffer]:
        return [buffer for reference in self.buffers if (buffer := reference()) is not None]


@dataclass(eq=False)
class HostBuffer:
    """One storage, flat: in host memory, and on the device while it is needed there."""

    block: SavedTensors
    host: Tensor
    device: Tensor | None


@dataclass(eq=False, frozen=True, slots=True)
class PackedTensor:
    """Autograd holds this in place of a tensor: the buffer with its numbers, and its shape."""

    buffer: HostBuffer
    size: torch.Size
    stride: Sequence[Any]
    offset: Any

    def unpack(self) -> Tensor:
        """The tensor, on the device."""
        assert self.buffer.device is not None, "it has been copied back"
        return self.buffer.device.as_strided(self.size, self.stride, self.offset)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[Tensor]:
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
