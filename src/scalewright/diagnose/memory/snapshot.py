"""A snapshot of CUDA's caching allocator: what is held, what the peak was made of, and how much is in pieces.

    reserved   ████████████████████████████████   segments taken from the driver
    allocated  ███████████  ██████    ████         blocks in use         inactive: the rest, kept for reuse

    peak       the level of allocated bytes, followed through the trace of allocations; that is a ring buffer,
               so that the level is found backwards: its end is what is allocated now
    owners     of the peak: the user's innermost frame at each block's allocation

`torch.cuda.memory._dump_snapshot(file)` writes it. Bytes throughout. A block's size is rounded to 512 bytes
and may be larger than what was asked for; the trace holds the sizes of blocks too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from scalewright.diagnose.pickles import NotPlainData, read_pickle

LIBRARY = re.compile(r"(?:^|/)(?:torch|site-packages|dist-packages|lib/python[\d.]+)/|^<", re.IGNORECASE)
FREE = "inactive"
NATIVE = "(no frame of Python)"


@dataclass(frozen=True)
class Snapshot:
    """Bytes of one device's allocator. `owners`: bytes at the peak by the frame that allocated them."""

    reserved: int
    allocated: int
    active: int
    inactive: int
    in_pieces: int
    largest_free: int
    segments: int
    peak: int
    owners: list[tuple[str, int]]
    out_of_memory: list[int]
    settings: dict[str, Any]
    covered: bool

    @property
    def fragmentation_pct(self) -> float:
        """Free bytes in segments partly in use, of all reserved ones: wholly free segments can be reused."""
        return 100 * self.in_pieces / self.reserved if self.reserved else 0.0


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
    """An allocation, a free, or running out of memory."""

    action: str = ""
    addr: int = 0
    size: int = 0
    frames: Any = None


class _File(msgspec.Struct):
    segments: list[Segment]
    device_traces: list[list[Event]] = []
    allocator_settings: dict[str, Any] = {}


def read_snapshot(path: Path) -> list[Snapshot]:
    """One a device that has any; raises NotPlainData where the file isn't a snapshot."""
    try:
        data = msgspec.convert(read_pickle(path), _File)
    except msgspec.ValidationError as error:
        raise NotPlainData(f"it isn't a memory snapshot: {error}") from None
    devices = {segment.device for segment in data.segments}
    devices |= {number for number, trace in enumerate(data.device_traces) if trace}
    traces = dict(enumerate(data.device_traces))
    return [
        _device(
            [segment for segment in data.segments if segment.device == device],
            traces.get(device, []),
            data.allocator_settings,
        )
        for device in sorted(devices)
    ]


def _device(segments: Sequence[Segment], trace: Sequence[Event], settings: dict[str, Any]) -> Snapshot:
    blocks = [block for segment in segments for block in segment.blocks]
    free = [block.size for block in blocks if block.state == FREE]
    allocated = sum(segment.allocated_size for segment in segments)
    level, peak, at = _level(trace, allocated)
    return Snapshot(
        reserved=sum(segment.total_size for segment in segments),
        allocated=allocated,
        active=sum(segment.active_size for segment in segments),
        inactive=sum(free),
        in_pieces=sum(_in_pieces(segment) for segment in segments),
        largest_free=max(free, default=0),
        segments=len(segments),
        peak=peak,
        owners=_owners(trace, at, [block for block in blocks if block.state != FREE]),
        out_of_memory=[event.size for event in trace if event.action == "oom"],
        settings=settings,
        covered=level <= 0,
    )


def _in_pieces(segment: Segment) -> int:
    """Free bytes of a segment that is partly in use."""
    free = sum(block.size for block in segment.blocks if block.state == FREE)
    return free if free < segment.total_size else 0


def _level(trace: Sequence[Event], allocated: int) -> tuple[int, int, int]:
    """Allocated bytes before the trace begins, at its peak, and the number of events before the peak."""
    changes = [_change(event) for event in trace]
    before = level = allocated - sum(changes)
    peak, at = level, 0
    for number, change in enumerate(changes, 1):
        level += change
        if level > peak:
            peak, at = level, number
    return before, peak, at


def _change(event: Event) -> int:
    """Bytes that an event adds to the level; a block is free when its last stream is done with it."""
    return {"alloc": 1, "free_completed": -1}.get(event.action, 0) * event.size


def _owners(trace: Sequence[Event], at: int, held: Sequence[Block]) -> list[tuple[str, int]]:
    """Bytes at the peak by owner, the largest first: the blocks held now, followed back to then."""
    live = {block.address: (block.size, _owner(block.frames)) for block in held}
    allocations = {event.addr: event for event in trace[:at] if event.action == "alloc"}
    for event in reversed(trace[at:]):
        if event.action == "alloc":
            live.pop(event.addr, None)
        elif event.action == "free_completed":
            live[event.addr] = (event.size, _owner(allocations.get(event.addr, event).frames))
    totals: dict[str, int] = {}
    for size, owner in live.values():
        totals[owner] = totals.get(owner, 0) + size
    return sorted(totals.items(), key=lambda item: -item[1])


def _owner(frames: object) -> str:
    """The innermost frame of the user's own code, else of any Python: `forward (model.py:31)`."""
    if not isinstance(frames, (list, tuple)):
        return NATIVE
    python = [
        (
            str(frame.get("name", "?")),
            str(frame.get("filename", "")).replace("\\", "/"),
            frame.get("line", "?"),
        )
        for frame in frames
        if isinstance(frame, Mapping) and str(frame.get("filename", "")).endswith(".py")
    ]
    owners = [frame for frame in python if not LIBRARY.search(frame[1])] or python
    if not owners:
        return NATIVE
    name, file, line = owners[0]
    return f"{name} ({PurePosixPath(file).name}:{line})"
