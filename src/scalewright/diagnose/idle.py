"""Why a GPU stood idle: for each gap, what the host was doing while there was nothing to run.

    GPU    ██████ k1 ███│░░░░░░░░░░░░░░░░░░░░░│▒▒▒▒│██ k2 ██
                        │ host: not launched  │    k2's launch call begins
    host          ──────┴─────────────────────┴ cudaLaunchKernel
                              ▲ what ran here: the data loader, what follows a synchronisation, or the rest

    data     the host was in the data loader, or in a function or range named as one (`next batch`, `load_data`)
    sync     the GPU ran dry in a synchronisation (.item(), .cpu(), cudaDeviceSynchronize): the host had
             nothing queued when it came back, and the gap until it launches again is the price of that
    host     Python, the framework and the driver were slower than the GPU
    launch   from the launch call's begin to the kernel's start, or microseconds between queued kernels
    other    the kernel was queued and waited for something: another stream, an event, a copy

HTA's `host_wait` is the first three together, its `kernel_wait` is short `launch`, and its `other` ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import Activity
from scalewright.diagnose.traces.trace import CALL, FRAME, Trace

CAUSES = ("host", "launch", "data", "sync", "other")
FRONT_END = 10_000  # ns: what a GPU takes between two kernels of a full queue; more means that one waited
SLACK = 50_000  # ns by which a synchronisation's call may return before or after the GPU ran dry
SYNCHRONISES = ("synchronize",)
PHASE = "data phase"  # as our own traces name it
LOADS = ("enumerate(dataloader", "dataloader", "_dataloaderiter", "data_loader")
# `train.py(12): get_batch`, `data loading`
BATCH = re.compile(
    r"(?:.*[:.#/ ])?_*(?:(?:get|next|load|fetch|read)[_ ]?(?:(?:next|train|mini|micro)[_ ]?)*(?:batch(?:es)?|samples?)|"
    r"(?:load|fetch|read|next)[_ ]?data|(?:data|batch)[_ ]?load(?:ing)?)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Idle:
    """The gaps of a window (int64 [n, 2], nanoseconds), and how much of each a cause explains (int64 [n])."""

    gaps: np.ndarray
    by_cause: dict[str, np.ndarray]
    launched: np.ndarray  # bool: whether the launch of the kernel that ended it is in the trace

    def totals(self) -> dict[str, int]:
        """Nanoseconds by cause; they add up to the idle time."""
        return {cause: int(part.sum()) for cause, part in self.by_cause.items()}


def idle_causes(trace: Trace, what: Activity) -> Idle:
    """The causes of every gap; all `other` in a trace that has no launches (a GPU alone, or a CPU alone)."""
    gaps = what.idle
    start, end = gaps[:, 0], gaps[:, 1]
    call = _launch_before(trace, end)
    host_end = np.where(call >= 0, np.clip(trace.start[call], start, end), start)
    waited, queued = host_end - start, end - host_end
    data = np.minimum(intervals.length_within(loading(trace), start, host_end), waited)
    synchronised = trace.spans(trace.containing(SYNCHRONISES) & (trace.category == CALL))
    dry = intervals.place(synchronised[:, 0] - SLACK, synchronised[:, 1] + SLACK + 1, start) >= 0
    sync = np.where(dry, waited - data, 0)
    launch = np.where((call >= 0) & ((waited > 0) | (queued <= FRONT_END)), queued, 0)
    parts = (waited - data - sync, launch, data, sync, queued - launch)
    return Idle(gaps, dict(zip(CAUSES, parts, strict=True)), call >= 0)


def loading(trace: Trace) -> np.ndarray:
    """The time that the host spent in the data loader."""
    ranges = (trace.containing(LOADS) | trace.starting((PHASE,))) & (trace.category != FRAME)
    return trace.spans((ranges | trace.with_name(lambda name: bool(BATCH.fullmatch(name)))) & ~trace.on_gpu)


def _launch_before(trace: Trace, end: np.ndarray) -> np.ndarray:
    """For every gap's end the row of the call that launched the kernel which ended it; -1 unknown."""
    if not len(end) or not trace.on_gpu.any():
        return np.full(len(end), -1, dtype=np.int64)
    rows = trace.in_order(np.flatnonzero(trace.on_gpu))
    place = np.minimum(np.searchsorted(trace.start[rows], end), len(rows) - 1)
    return np.asarray(trace.launches[rows[place]])
