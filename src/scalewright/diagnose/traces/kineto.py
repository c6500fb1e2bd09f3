"""Reads what PyTorch's profiler writes (Kineto's JSON, gzipped or not) into a `Trace`, event by event.

    file ──► unpack.py ──► json_array.py ──► [Event, ...] ──► columns      half a MiB at a time

    ph   X: something with a duration     M: names of processes     i: an instant     s, f: arrows
    cat  kernel, gpu_memcpy, gpu_memset · cuda_runtime, cuda_driver · cpu_op · user_annotation · cuda_sync ·
         python_function; PyTorch 1.8 wrote Kernel, Memcpy, Memset, Runtime, Operator
    ts   microseconds, whole in old traces, with three digits for the nanoseconds since 2024

Only the fields that are declared here are decoded, which is most of the speed. Frames of Python (half to nine tenths of
a trace with stacks) are counted and left out, but for long ones and the layers of a model (`LAYER`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from scalewright.diagnose.traces.json_array import EventArray
from scalewright.diagnose.traces.memory_events import MemoryEvents, read_memory
from scalewright.diagnose.traces.trace import CATEGORY, KERNEL, Collective, Launched, Trace
from scalewright.diagnose.traces.unpack import Unpacked

LONG_FRAME = 1000.0  # microseconds: what a host was in for so long
LATEST = 9e15  # microseconds: what fits into 64 bits of nanoseconds
EXACT = float(1 << 42)  # microseconds below which a float64 still tells nanoseconds apart
MANY = 64  # events
LONG = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
# The rank of a file whose recorder didn't write it down.
RANK_IN_NAME = (re.compile(r"rank[-_.]?(\d+)", re.I), re.compile(r"(?:^|[-_.])(\d+)(?=\.|$)"))
Word = int | float | str | None
Shapes = tuple[list[Any], list[Any]]
NOTHING = msgspec.Raw(b"")
# Operators whose shapes are kept, for roofs.py.
PRODUCTS = frozenset((
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
))  # fmt: skip
# `nn.Module: LlamaDecoderLayer_7`, a frame of Python that becomes a range
LAYER = re.compile(r"nn\.Module: \w*(?:Block|DecoderLayer|EncoderLayer|TransformerLayer)_\d{1,6}$")
RAW = ("Input Dims", "Input type", "grid", "block")
COLUMNS = ("category", "name", "start", "end", "lane", "correlation", "sequence")


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that the analysis uses."""

    stream: Word = None
    device: Word = None
    correlation: int | None = None
    sequence: Word = msgspec.field(default=None, name="Sequence number")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    dtype: str | None = None
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    group: Word = msgspec.field(default=None, name="Process Group Name")
    group_about: Word = msgspec.field(default=None, name="Process Group Description")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    target: int | None = msgspec.field(default=None, name="Dst Rank")
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    registers: Word = msgspec.field(default=None, name="registers per thread")
    shared: Word = msgspec.field(default=None, name="shared memory")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")


class Event(msgspec.Struct, gc=False):
    """An event of the list."""

    ph: str = ""
    cat: str | None = None
    name: Word = None
    ts: float = 0.0
    dur: float | None = None
    pid: Word = None
    tid: Word = None
    args: Args | None = None


class Stamp(msgspec.Struct, gc=False):
    """The start alone, digit by digit."""

    ts: Decimal = Decimal(0)


NO_ARGS = Args()
FAST = msgspec.json.Decoder(list[Event])
STAMPS = msgspec.json.Decoder(list[Stamp])


def read_kineto(path: Path) -> Trace:
    """The trace of a file; raises NotATrace where it has no list of events, OSError where it can't be read.

    Damage doesn't raise: the trace holds what could be read, and `warnings` what couldn't.
    """
    unpacked, columns = Unpacked(path), _Columns()
    events: EventArray[Event] = EventArray(unpacked, columns.decode)
    for chunk in events:
        columns.add(chunk)
    trace = columns.trace(path, events.outside)
    rank, matches = trace.distributed.get("rank"), (pattern.search(path.name) for pattern in RANK_IN_NAME)
    trace.rank = int(rank) if isinstance(rank, int) else next((int(match[1]) for match in matches if match), None)
    trace.warnings += [unpacked.damage] * bool(unpacked.damage) + events.damage
    return trace


class _Columns:
    """The columns while they grow, an array a chunk."""

    def __init__(self) -> None:
        self.names: dict[str, int] = defaultdict(count().__next__)  # a new one gets the next number
        self.lanes: dict[tuple[Word, Word], int] = defaultdict(count().__next__)
        self.chunks: dict[str, list[np.ndarray]] = {key: [] for key in COLUMNS}
        self.collectives: dict[int, Collective] = {}
        self.shapes: dict[int, Shapes] = {}
        self.written: dict[tuple[bytes, bytes], Shapes | None] = {}
        self.launched: dict[int, Launched] = {}
        self.configurations: dict[tuple[bytes, bytes, Word, Word], Launched | None] = {}
        self.memory: list[tuple[int, ...]] = []
        self.rows = self.frames = self.strange = 0
        self.text = b""  # of the events that were decoded last; empty for those of another form

    def decode(self, text: bytes) -> list[Event]:
        """Events of a JSON list; those of a form that isn't Kineto's are counted and left out."""
        try:
            events, self.text = FAST.decode(text), text
        except msgspec.ValidationError:
            events, self.text = self._one_by_one(msgspec.json.decode(text)), b""
        self.memory += read_memory(text, lambda *line: self.lanes[line])
        return events

    def _one_by_one(self, items: Iterable[Any]) -> list[Event]:
        events = []
        for item in items:
            try:
                events.append(msgspec.convert(_with_raw_shapes(item), Event, strict=False))
            except (msgspec.ValidationError, OverflowError):
                self.strange += 1
        return events

    def add(self, events: Sequence[Event]) -> None:
        """Appends the rows of a chunk."""
        frames = [event for event in events if event.cat == "python_function"]
        self.frames += len(frames)
        for event in frames:
            if LAYER.match(str(event.name)):
                event.cat = "user_annotation"
            elif (event.dur or 0.0) < LONG_FRAME:
                event.cat = ""
        kept = [event for event in events if event.cat in CATEGORY and event.ph == "X"]
        lengths = [event.dur or 0.0 for event in kept]
        starts = [event.ts for event in kept]
        if kept and max(max(starts), -min(starts)) + max(lengths) >= LATEST:
            kept = [event for event in kept if abs(event.ts) + (event.dur or 0.0) < LATEST]
            starts, lengths = [event.ts for event in kept], [event.dur or 0.0 for event in kept]
        if not kept:
            return
        args = [event.args or NO_ARGS for event in kept]
        names, lanes = self.names, self.lanes
        start = self._starts(kept, events, starts)
        columns = {
            "category": np.array([CATEGORY[event.cat or ""] for event in kept], dtype=np.int8),
            "name": np.array([names[str(event.name)] for event in kept], dtype=np.int32),
            "start": start,
            "end": start + np.maximum(_nanoseconds(lengths), 0),
            "lane": np.array([
                lanes[(event.pid, event.tid) if a.stream is None else (a.device, a.stream)]
                for event, a in zip(kept, args, strict=True)
            ], dtype=np.int32),
            "correlation": _integers([a.correlation for a in args]),
            "sequence": _integers([a.sequence if isinstance(a.sequence, int) else None for a in args]),
        }  # fmt: skip
        for key, column in columns.items():
            self.chunks[key].append(column)
        for row in [row for row, a in enumerate(args) if a.collective is not None]:
            self.collectives[self.rows + row] = _collective(args[row])
        products = [number for name, number in names.items() if name in PRODUCTS]
        for row in np.flatnonzero(np.isin(columns["name"], products)).tolist():
            if shapes := self._shapes(args[row]):
                self.shapes[self.rows + row] = shapes
        for row in np.flatnonzero(columns["category"] == KERNEL).tolist():
            a = args[row]
            configuration = bytes(a.grid), bytes(a.block), a.registers, a.shared
            if configuration not in self.configurations:  # one object for all launches alike
                self.configurations[configuration] = _launched(a)
            if (launched := self.configurations[configuration]) is not None:
                self.launched[self.rows + row] = launched
        self.rows += len(kept)

    def _starts(self, kept: Sequence[Event], events: Sequence[Event], microseconds: list[float]) -> np.ndarray:
        """Nanoseconds at which those that are kept begin, digit by digit where a float can't hold them."""
        start = _nanoseconds(microseconds)
        # Of many that have digits behind the point, floats of such a size lose those of a part only.
        whole = len(kept) >= MANY and not (start % 1000).any()
        if whole or max(microseconds) <= EXACT or not LONG.search(self.text):
            return start
        stamps = dict(zip(map(id, events), STAMPS.decode(self.text), strict=True))
        exact = np.array([int(stamps[id(event)].ts * 1000) for event in kept])
        return np.where(exact >= 0, exact, start)

    def _shapes(self, args: Args) -> Shapes | None:
        """An operator's inputs: shapes and types, one object for all alike; None where they aren't lists."""
        written = bytes(args.dims), bytes(args.types)
        if written not in self.written:
            self.written[written] = _shapes(*written)
        return self.written[written]

    def trace(self, path: Path, about: dict[str, object]) -> Trace:
        """The finished columns."""
        empty = np.empty(0, dtype=np.int64)
        columns = {key: np.concatenate(chunks or [empty]) for key, chunks in self.chunks.items()}
        base = about.get("baseTimeNanoseconds")
        if not isinstance(base, int) or not 0 < base < LATEST * 1000:
            base = 0
        columns["start"] += base
        columns["end"] += base
        warnings = [f"{self.strange:,} events aren't of Kineto's form and were left out"] * bool(self.strange)
        lanes = [(str(place), str(line)) for place, line in self.lanes]
        memory = MemoryEvents(*np.array(self.memory, dtype=np.int64).T) if self.memory else None
        if memory is not None:
            memory.start[:] += base
        return Trace(
            path, None, [*self.names], lanes, **columns, collectives=self.collectives, shapes=self.shapes,
            launched=self.launched, memory=memory, about={**about, "python_frames": self.frames}, warnings=warnings,
        )  # fmt: skip


def _nanoseconds(microseconds: list[float]) -> np.ndarray:
    """Whole nanoseconds: the digits behind the point are rounded apart, so that none before it is lost."""
    values = np.array(microseconds)
    whole = np.floor(values)
    return np.asarray(whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64))


def _integers(values: list[int | None]) -> np.ndarray:
    """64-bit integers, -1 for those that are missing or too large."""
    try:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    except OverflowError:
        return np.array([-1 if value is None or abs(value) >= 1 << 63 else value for value in values], dtype=np.int64)


def _collective(args: Args) -> Collective:
    numbers = (args.elements_in, args.elements_out, args.group_size, args.source, args.target)
    words = (args.collective, args.dtype, args.group, args.group_about, args.ranks)
    elements_in, elements_out, size, source, target = (-1 if value is None else value for value in numbers)
    name, dtype, group, about, ranks = ("" if value is None else str(value) for value in words)
    return Collective(name, dtype, elements_in, elements_out, group, about, size, ranks, source, target)


def _with_raw_shapes(item: Any) -> Any:
    """An event that was decoded, with its shapes as JSON again."""
    args = item.get("args") if isinstance(item, dict) else None
    if isinstance(args, dict) and any(key in args for key in RAW):
        raw = {key: msgspec.Raw(msgspec.json.encode(args[key])) for key in RAW if key in args}
        return item | {"args": args | raw}
    return item


def _launched(args: Args) -> Launched | None:
    try:
        grid, block = (msgspec.json.decode(x, type=tuple[int, ...]) for x in (args.grid, args.block))
    except msgspec.MsgspecError:
        return None
    registers, shared = (value if isinstance(value, int) else -1 for value in (args.registers, args.shared))
    return Launched(grid, block, registers, shared)


def _shapes(dims: bytes, types: bytes) -> Shapes | None:
    try:
        both = msgspec.json.decode(dims), msgspec.json.decode(types)
    except msgspec.DecodeError:
        return None
    return both if isinstance(both[0], list) and isinstance(both[1], list) else None
