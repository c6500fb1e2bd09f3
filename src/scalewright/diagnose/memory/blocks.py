"""The lives of a snapshot's blocks: how large each is, where it was allocated, when it came and went.

event    0      1      2      3      4       the trace, a ring buffer: the newest events
held     ████████████████████████████████    born before it, still held: known from the segments
freed    ██████████                          born before it, freed in it: its stack is lost
block           █████████████                alloc ... free_completed
level    what all blocks alive after an event hold; `rest` is what no block explains

The form of a snapshot of CUDA's allocator, as `torch.cuda.memory._dump_snapshot` writes it; in bytes.

segments        taken from the driver, cut into blocks          what is held when it was written
device_traces   allocations and frees, a ring buffer a device   what came before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

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
    allocator_settings: dict[str, object] = {}


BEFORE = -1  # born before the trace began
UNIT = 512  # bytes to which the allocator rounds up


@dataclass(frozen=True, slots=True)
class Life:
    """A block: bytes, frames of its allocation (None where they are lost), the events of its birth and end.

    `born`: BEFORE, or the event's number. `dies`: the event's number, or None where it is still held;
    `freed`: the frames of that. `whole`: bytes of the block, which may be more than were asked for.
    """

    size: int
    frames: Any
    born: int
    dies: int | None
    freed: Any = None
    whole: int = 0

    def alive(self, event: int) -> bool:
        """Whether it is held after an event."""
        return self.born <= event and (self.dies is None or self.dies > event)


def lives(trace: Sequence[Event], held: Sequence[Block]) -> list[Life]:
    """Every block that the trace or the segments show."""
    open_blocks: dict[int, tuple[int, Event | Block]] = {}
    result = []
    for number, event in enumerate(trace):
        if event.action == "alloc":
            open_blocks[event.addr] = (number, event)
        elif event.action == "free_completed":
            born, allocated = open_blocks.pop(event.addr, (BEFORE, Block(event.size)))  # else its stack is lost
            whole = -(-event.size // UNIT) * UNIT
            result.append(Life(event.size, allocated.frames, born, number, event.frames, whole))
    for block in held:
        if block.state != FREE:  # by the trace's size, as its free would have: a block may be larger
            born, allocated = open_blocks.pop(block.address, (BEFORE, block))
            result.append(Life(allocated.size, allocated.frames, born, None, None, block.size))
    return result


def levels(blocks: Sequence[Life], group: Sequence[int], groups: int, events: int) -> np.ndarray:
    """Bytes held by each group of blocks after every event; int64 [groups, events + 1], first before all.

    `group`: each block's, from 0.
    """
    changes = np.zeros((groups, events + 1), dtype=np.int64)
    for block, number in zip(blocks, group, strict=True):
        changes[number, block.born + 1] += block.size
        if block.dies is not None:
            changes[number, block.dies + 1] -= block.size
    return np.asarray(np.cumsum(changes, axis=1))
