"""A trace of one rank as columns: what ran when, on which stream or thread, and what launched it.

    row          0        1        2       ...        times are whole nanoseconds since the Unix epoch, or
    category     KERNEL   CALL     OP                 since whatever the recorder counts from
    name         17       4        92      ──► names[17] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)"
    start, end   [ns]     [ns]     [ns]
    lane         3        0        0       ──► lanes[3]  = (device, stream) or (process, thread)
    correlation  811      811      -1         a kernel and the call that launched it have the same

Whatever a reader reads (Kineto, Nsight Systems) it fills these columns, so that the analysis has one input. What a
kernel does follows from its name (kinds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.traces.memory_events import MemoryEvents

# Categories of rows. GPU activity first: `category <= MEMSET` is the test for it.
KERNEL, MEMCPY, MEMSET, CALL, OPERATOR, ANNOTATION, SYNC, FRAME = range(8)
CATEGORY = {  # by Kineto's words
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": MEMCPY, "Memcpy": MEMCPY, "gpu_memset": MEMSET, "Memset": MEMSET,
    "cuda_runtime": CALL, "cuda_driver": CALL, "hip_runtime": CALL, "xpu_runtime": CALL, "Runtime": CALL,
    "cpu_op": OPERATOR, "Operator": OPERATOR, "user_annotation": ANNOTATION, "cuda_sync": SYNC,
    "python_function": FRAME,
}  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """The metadata of a collective, as the profiler recorded it; empty or -1 where it didn't.

    `elements_in`, `elements_out`: numbers of one rank. `group`: the process group's name and `group_about`
    its description, such as `mesh_tp`; `ranks`: as printed, long lists shortened.
    """

    name: str
    dtype: str = ""
    elements_in: int = -1
    elements_out: int = -1
    group: str = ""
    group_about: str = ""
    group_size: int = -1
    ranks: str = ""
    source: int = -1
    target: int = -1


@dataclass(frozen=True)
class Launched:
    """How a kernel was launched: blocks and threads in three dimensions; -1 for what isn't recorded."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int = -1  # of a thread
    shared: int = -1  # bytes of a block


@dataclass
class Trace:
    """Columns of one rank's trace, every array of the same length, and facts about the recording."""

    path: Path
    rank: int | None
    names: list[str]
    lanes: list[tuple[str, str]]
    category: np.ndarray  # int8
    name: np.ndarray  # int32
    start: np.ndarray  # int64, ns
    end: np.ndarray  # int64, ns
    lane: np.ndarray  # int32
    correlation: np.ndarray  # int64, -1 without
    collectives: dict[int, Collective] = field(default_factory=dict)  # by row
    shapes: dict[int, tuple[list[Any], list[Any]]] = field(default_factory=dict)  # of products: inputs, types
    launched: dict[int, Launched] = field(default_factory=dict)  # of kernels, by row
    memory: MemoryEvents | None = None  # where the recorder followed it
    about: Mapping[str, object] = field(default_factory=dict)  # the recorder's own metadata: devices, world size, ...
    warnings: list[str] = field(default_factory=list)
    sequence: np.ndarray | None = None  # int64: of an operator autograd's number, of a backward its forward's

    def __len__(self) -> int:
        return len(self.start)

    @property
    def on_gpu(self) -> np.ndarray:
        """Rows that a GPU executed: kernels, copies and sets of memory."""
        return self.category <= MEMSET

    @property
    def device(self) -> Mapping[str, Any]:
        """What the recorder wrote down of the first device; empty where it didn't."""
        devices = self.about.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices else None
        return first if isinstance(first, dict) else {}

    @property
    def distributed(self) -> Mapping[str, Any]:
        """What it wrote down of the ranks: this one's number, how many there are, their groups."""
        about = self.about.get("distributedInfo")
        return about if isinstance(about, dict) else {}

    @cached_property
    def launches(self) -> np.ndarray:
        """For every row the row of the call that launched it, -1 where the trace doesn't tell."""
        calls = np.flatnonzero((self.category == CALL) & (self.correlation >= 0))
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        place = np.searchsorted(self.correlation[calls], self.correlation)
        place = np.minimum(place, max(len(calls) - 1, 0))
        result = np.full(len(self), -1, dtype=np.int64)
        if len(calls):
            same = self.on_gpu & (self.correlation >= 0) & (self.correlation[calls[place]] == self.correlation)
            result[same] = calls[place[same]]
        return result

    def starting(self, words: tuple[str, ...]) -> np.ndarray:
        """Rows whose name begins with one of `words`, which are in lower case."""
        return self.with_name(lambda name: name.lower().startswith(words))

    def containing(self, words: tuple[str, ...]) -> np.ndarray:
        """Rows whose name contains one of `words`, which are in lower case."""
        return self.with_name(lambda name: any(word in name.lower() for word in words))

    def with_name(self, fits: Callable[[str], bool]) -> np.ndarray:
        """Rows whose name fits; bool, one a row."""
        return np.asarray(np.array([fits(name) for name in self.names] or [False])[self.name])

    def in_order(self, rows: np.ndarray) -> np.ndarray:
        """Rows by their start."""
        return np.asarray(rows[np.argsort(self.start[rows], kind="stable")])

    def spans(self, rows: np.ndarray) -> np.ndarray:
        """When one of the rows ran, as a set of time: int64 [n, 2]."""
        return intervals.union(self.start[rows], self.end[rows])
