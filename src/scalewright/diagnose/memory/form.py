"""The form of a snapshot of CUDA's allocator, as `torch.cuda.memory._dump_snapshot` writes it; in bytes.

segments        taken from the driver, cut into blocks          what is held when it was written
device_traces   allocations and frees, a ring buffer a device   what came before
"""

from __future__ import annotations

from typing import Any

import msgspec

FREE = "inactive"


class Block(msgspec.Struct):
    """A piece of a segment, in use or free."""

    size: int
    address: int = 0
    state: str = ""
    frames: Any = None


class Segment(msgspec.Struct):
    """Memory taken from the driver in one piece."""

    device: int = 0
    total_size: int = 0
    allocated_size: int = 0
    active_size: int = 0
    blocks: list[Block] = []


class Event(msgspec.Struct):
    """An allocation, a free, or running out of memory, which has what the device had free."""

    action: str = ""
    addr: int = 0
    size: int = 0
    frames: Any = None
    time_us: int = 0
    device_free: int = -1


class SnapshotFile(msgspec.Struct):
    """All of it."""

    segments: list[Segment]
    device_traces: list[list[Event]] = []
    allocator_settings: dict[str, Any] = {}
