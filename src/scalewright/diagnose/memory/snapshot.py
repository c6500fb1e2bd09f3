"""A snapshot of CUDA's caching allocator: what is held, what the peak was made of, and how much is in pieces.

    reserved   ████████████████████████████████   segments taken from the driver
    allocated  ███████████  ██████    ████         blocks in use         inactive: the rest, kept for reuse

    peak       the level of allocated bytes, followed through the trace of allocations; that is a ring buffer,
               so that the level is found backwards: its end is what is allocated now
    owners     of the peak: the user's innermost frame at each block's allocation (blocks.py)

`torch.cuda.memory._dump_snapshot(file)` writes it. Bytes throughout. A block's size is rounded to 512 bytes and may be
larger than what was asked for; the trace holds the sizes of blocks too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from scalewright.diagnose.memory.blocks import FREE, Event, Life, Segment, SnapshotFile, lives
from scalewright.diagnose.memory.categories import Judged, judge
from scalewright.diagnose.memory.stacks import Stacks
from scalewright.spec.common.pickles import NotPlainData, read_pickle


@dataclass(frozen=True)
class Snapshot:
    """Bytes of one device's allocator. `owners`: bytes at the peak by the frame that allocated them.

    `before`: allocated when the trace begins. `peak_event`: events before the peak. `blocks`: all lives.
    `out_of_memory`: bytes asked for in vain, and free on the device then (-1: not recorded).
    """

    reserved: int
    allocated: int
    active: int
    inactive: int
    in_pieces: int
    largest_free: int
    segments: int
    peak: int
    owners: list[tuple[str, int]]
    out_of_memory: list[tuple[int, int]]
    settings: dict[str, object]
    before: int
    peak_event: int
    time_us: list[int]
    blocks: list[Life]
    judged: Judged

    @property
    def fragmentation_pct(self) -> float:
        """Free bytes in segments partly in use, of all reserved ones: wholly free segments can be reused."""
        return 100 * self.in_pieces / self.reserved if self.reserved else 0.0


def read_snapshot(path: Path) -> list[Snapshot]:
    """One a device that has any; raises NotPlainData where the file isn't a snapshot."""
    try:
        data = msgspec.convert(read_pickle(path), SnapshotFile)
    except msgspec.ValidationError as error:
        raise NotPlainData(f"it isn't a memory snapshot: {error}") from None
    segments: dict[int, list[Segment]] = defaultdict(list)
    for segment in data.segments:
        segments[segment.device].append(segment)
    traces = {number: trace for number, trace in enumerate(data.device_traces) if trace}
    devices = sorted(segments.keys() | traces.keys())
    return [_device(segments[device], traces.get(device, []), data.allocator_settings) for device in devices]


def _device(segments: Sequence[Segment], trace: Sequence[Event], settings: dict[str, object]) -> Snapshot:
    blocks = [block for segment in segments for block in segment.blocks]
    free = [block.size for block in blocks if block.state == FREE]
    free_of = [sum(block.size for block in segment.blocks if block.state == FREE) for segment in segments]
    allocated = sum(segment.allocated_size for segment in segments)
    before, peak, peak_event = _level(trace, allocated)
    alive = lives(trace, blocks)
    judged = judge(alive)
    return Snapshot(
        reserved=sum(segment.total_size for segment in segments),
        allocated=allocated,
        active=sum(segment.active_size for segment in segments),
        inactive=sum(free),
        in_pieces=sum(size for size, segment in zip(free_of, segments, strict=True) if size < segment.total_size),
        largest_free=max(free, default=0),
        segments=len(segments),
        peak=peak,
        owners=_owners(alive, judged, peak_event),
        out_of_memory=[(event.size, event.device_free) for event in trace if event.action == "oom"],
        settings=settings,
        before=before,
        peak_event=peak_event,
        time_us=[event.time_us for event in trace],
        blocks=alive,
        judged=judged,
    )


def _level(trace: Sequence[Event], allocated: int) -> tuple[int, int, int]:
    """Allocated bytes before the trace begins, at its peak, and the number of events before the peak.

    A block is free when its last stream is done with it.
    """
    changes = [{"alloc": 1, "free_completed": -1}.get(event.action, 0) * event.size for event in trace]
    levels = [*accumulate(changes, initial=allocated - sum(changes))]
    peak = max(levels)
    return levels[0], peak, levels.index(peak)


def _owners(blocks: Sequence[Life], judged: Judged, peak_event: int) -> list[tuple[str, int]]:
    """Bytes at the peak by owner, the largest first: the line that allocated it, or freed it at least."""
    totals, reader = Counter[str](), Stacks()
    for block, stack in zip(blocks, judged.stacks, strict=True):
        if block.alive(peak_event - 1):
            line = reader.read(block.freed).line if block.frames is None else stack.line
            totals[line] += block.size
    return totals.most_common()
