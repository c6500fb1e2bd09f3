"""What a rank writes in a save, copied into host memory that is kept: the run trains on while it is written from there.

    device    step N ── update N+1 waits ──────────► step N+1         the copy has the time of a forward and a backward
                 └── copies, on a stream of their own ──► event
    host                                                  │  memory, laid out as the checkpoint's files
    writer                                                └──────────► disk        (writer.py: the same memory, mapped)

The memory is a file without a name (memfd): another process maps it, and nothing is left when both are gone. It is
pinned where the device is a GPU. On a CPU the copy is one memory copy, and the writer reads what was copied.

What a forward or a backward may change (a module's buffers, a rank's own tensors) is copied in the order of compute.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.pieces import lay_out
from scalewright.checkpoint.write import Chunk, in_files


class HostFile:
    """A file's bytes in memory that other processes can map. Raises OSError where there isn't enough."""

    def __init__(self, size: int, device: torch.device, path: Path | None = None) -> None:
        """`path`: in a file system in memory, where it outlives its processes."""
        self.size, self.handle = size, _memory_file(path)
        try:
            if path is not None:
                os.ftruncate(self.handle, size)
            if hasattr(os, "posix_fallocate"):  # memory that isn't there is an error here, and not a SIGBUS later
                os.posix_fallocate(self.handle, 0, size)
            else:
                os.ftruncate(self.handle, size)
            self.bytes = mmap.mmap(self.handle, size)
        except OSError:
            os.close(self.handle)
            raise
        self._pinned = device.type == "cuda" and self._pin()

    def _pin(self) -> bool:
        whole = torch.frombuffer(self.bytes, dtype=torch.uint8)
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return int(runtime.cudaHostRegister(whole.data_ptr(), self.size, 0)) == 0  # else slower, not wrong

    def view(self, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> Tensor:
        """A tensor in it."""
        if not (count := prod(shape)):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.bytes, dtype=dtype, count=count, offset=begin).view(shape)

    def close(self) -> None:
        """Gives the memory back, once no tensor lies in it."""
        if self._pinned:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(torch.frombuffer(self.bytes, dtype=torch.uint8).data_ptr())
        os.close(self.handle)


def _memory_file(path: Path | None) -> int:
    if path is not None:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scalewright-save")
    with tempfile.TemporaryFile() as file:  # not on Linux
        return os.dup(file.fileno())


class Snapshot:
    """This rank's memory for saves; one save at a time lies in it."""

    def __init__(self, device: torch.device, *, apart: bool = True, folder: Path | None = None) -> None:
        """`apart`: updates `wait`, so that a GPU's copies may have a stream of their own. `folder`: in a file system in
        memory, for the files; else they have no names."""
        self.device, self.folder = device, folder
        gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if gpu and apart else None  # type: ignore[no-untyped-call]
        self._event: torch.cuda.Event | None = None
        self._signature: object = None
        self._memory: list[HostFile] = []
        self._places: dict[str, Tensor] = {}  # by the chunks' names
        self.files: list[dict[str, Any]] = []  # as a writer's job names them

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What was copied, where it lies."""
        return self._places

    @property
    def bytes(self) -> int:
        """Of host memory."""
        return sum(file.size for file in self._memory)

    @property
    def handles(self) -> list[int]:
        """The files' descriptors."""
        return [file.handle for file in self._memory]

    def prepare(self, chunks: Sequence[Chunk], rank: int) -> None:
        """Has memory for a rank's chunks; what the last save had is taken again where it fits. Raises OSError where
        there isn't enough."""
        signature = [(chunk.name, chunk.dtype, chunk.box[1]) for chunk in chunks]
        if signature == self._signature:
            return
        self.close()
        for name, batch in in_files(chunks, rank):
            head, ordered = lay_out(chunk.item for chunk in batch)
            size = len(head) + sum(chunk.bytes for chunk in batch)
            self._memory.append(file := HostFile(size, self.device, self.folder / name if self.folder else None))
            file.bytes[: len(head)] = head
            tensors = []
            for (tensor, dtype, shape, _), begin in ordered:
                self._places[tensor] = file.view(dtype, shape, begin)
                end = begin + prod(shape) * dtype.itemsize
                tensors.append([tensor, str(dtype).removeprefix("torch."), begin, end])
            self.files.append({"name": name, "bytes": size, "tensors": tensors})
        self._signature = signature

    @torch.no_grad()
    def take(self, chunks: Sequence[Chunk]) -> None:
        """Copies the chunks that it was prepared for, as they are now."""
        for chunk in chunks:
            if chunk.passing:
                self._places[chunk.name].copy_(chunk.get(), non_blocking=True)
        with self._copying():
            for chunk in chunks:
                if not chunk.passing:
                    self._places[chunk.name].copy_(chunk.get(), non_blocking=True)
            if self.device.type == "cuda":
                self._event = torch.cuda.current_stream(self.device).record_event()

    def _copying(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """What the device is given from now on waits until all has been copied; the host doesn't."""
        if self._event is not None and self._stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self._event)

    def is_copied(self, *, wait: bool = False) -> bool:
        """Whether all is in host memory; `wait`: until it is."""
        if self._event is not None and wait:
            self._event.synchronize()
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Gives the memory back."""
        self._signature, self._places, self.files = None, {}, []
        for file in self._memory:
            file.close()
        self._memory = []
