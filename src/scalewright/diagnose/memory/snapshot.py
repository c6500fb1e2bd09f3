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

from scalewright.diagnose.pickles import NotPlainData, read_pickle

LIBRARY = re.compile(r"(?:^|/)(?:torch|site-packages|dist-packages|lib/python[\d.]+)/|^<", re.IGNORECASE)
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


def read_snapshot(path: Path) -> list[Snapshot]:
    """One a device that has any; raises NotPlainData where the file isn't a snapshot."""
    data = read_pickle(path)
    if not isinstance(data, Mapping) or not isinstance(data.get("segments"), list):
        raise NotPlainData("it has no list of segments")
    traces = data.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    devices = sorted(
        {int(segment.get("device", 0)) for segment in data["segments"]}
        | {number for number, trace in enumerate(traces) if trace}
    )
    settings = data.get("allocator_settings")
    return [
        _device(
            [segment for segment in data["segments"] if int(segment.get("device", 0)) == device],
            traces[device] if device < len(traces) else [],
            dict(settings) if isinstance(settings, Mapping) else {},
        )
        for device in devices
    ]


def _device(segments: Sequence[Any], trace: Sequence[Any], settings: dict[str, Any]) -> Snapshot:
    blocks = [block for segment in segments for block in segment.get("blocks", ())]
    free = [int(block["size"]) for block in blocks if block.get("state") == "inactive"]
    held = [block for block in blocks if block.get("state") != "inactive"]
    allocated = sum(int(segment.get("allocated_size", 0)) for segment in segments)
    level, peak, at = _level(trace, allocated)
    return Snapshot(
        reserved=sum(int(segment.get("total_size", 0)) for segment in segments),
        allocated=allocated,
        active=sum(int(segment.get("active_size", 0)) for segment in segments),
        inactive=sum(free),
        in_pieces=sum(_in_pieces(segment) for segment in segments),
        largest_free=max(free, default=0),
        segments=len(segments),
        peak=peak,
        owners=_owners(trace, at, held),
        out_of_memory=[int(event.get("size", 0)) for event in trace if event.get("action") == "oom"],
        settings=settings,
        covered=level <= 0,
    )


def _in_pieces(segment: Mapping[str, Any]) -> int:
    """Free bytes of a segment that is partly in use."""
    free = [int(block["size"]) for block in segment.get("blocks", ()) if block.get("state") == "inactive"]
    return sum(free) if sum(free) < int(segment.get("total_size", 0)) else 0


def _level(trace: Sequence[Any], allocated: int) -> tuple[int, int, int]:
    """Allocated bytes before the trace begins, at its peak, and the number of events before the peak."""
    changes = [_change(event) for event in trace]
    before = level = allocated - sum(changes)
    peak, at = level, 0
    for number, change in enumerate(changes, 1):
        level += change
        if level > peak:
            peak, at = level, number
    return before, peak, at


def _change(event: Mapping[str, Any]) -> int:
    """Bytes that an event adds to the level; a block is free when its last stream is done with it."""
    sign = {"alloc": 1, "free_completed": -1}.get(str(event.get("action")), 0)
    return sign * int(event.get("size", 0))


def _owners(trace: Sequence[Any], at: int, held: Sequence[Any]) -> list[tuple[str, int]]:
    """Bytes at the peak by owner, the largest first: the blocks held now, followed back to then."""
    live = {int(block.get("address", 0)): (int(block["size"]), _owner(block.get("frames"))) for block in held}
    allocations = {int(event["addr"]): event for event in trace[:at] if event.get("action") == "alloc"}
    for event in reversed(trace[at:]):
        address = int(event.get("addr", 0))
        if event.get("action") == "alloc":
            live.pop(address, None)
        elif event.get("action") == "free_completed":
            source = allocations.get(address, event)
            live[address] = (int(event.get("size", 0)), _owner(source.get("frames")))
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
