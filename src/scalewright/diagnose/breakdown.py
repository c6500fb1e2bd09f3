"""Where a rank's time went: compute, communication and copies that nothing hides, and idle; the parts add up.

    compute        ████████    ██████████              kernels that aren't communication
    communication      ▒▒▒▒▒▒▒▒                kernels of collectives, of any library (traces/kinds.py)
    copies                           ░░░░  ░░          between memories, and their filling
    window         CCCCCCCCMMMMCCCCCCCCCCyy..yy   C compute  M, y exposed  . idle

    exposed communication = communication - compute
    exposed copy          = copies - compute - communication
    idle                  = window - all three     the window: the first GPU event's start to the last end

The partition is TraceLens's, and equal to HTA's where that counts right. All of it is whole nanoseconds.
Without a GPU in the trace the same is done with operators of the CPU: what Gloo and c10d run is
communication, and the window begins and ends with the profiled steps, which a loader's wait may begin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.traces.gloo import encloses_call, gloo_rows, waited_for
from scalewright.diagnose.traces.kinds import communicates
from scalewright.diagnose.traces.trace import ANNOTATION, KERNEL, OPERATOR, Trace

CPU_COMMUNICATION = ("gloo:", "nccl:", "mpi:", "c10d::", "record_param_comms")
CPU_WAITS = (
    "_c10d_functional::wait_tensor", "autograd::engine", "profilerstep", "##", "optimizer.", "distributeddataparallel",
    "enumerate(",
)  # fmt: skip
PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")


@dataclass(frozen=True)
class Activity:
    """What a rank's device did, as sets of time (int64 [n, 2], nanoseconds), and the window [start, end)."""

    compute: np.ndarray
    communication: np.ndarray
    copies: np.ndarray
    start: int
    end: int

    @property
    def busy(self) -> np.ndarray:
        """Any of the three."""
        return intervals.merge(self.compute, self.communication, self.copies)

    @property
    def exposed_communication(self) -> np.ndarray:
        """Communication that no compute hides."""
        return intervals.minus(self.communication, self.compute)

    @property
    def exposed_copies(self) -> np.ndarray:
        """Copies beside nothing else."""
        return intervals.minus(self.copies, intervals.merge(self.compute, self.communication))

    @property
    def idle(self) -> np.ndarray:
        """Time in which nothing ran."""
        return intervals.gaps(self.busy, self.start, self.end)


@dataclass(frozen=True)
class Breakdown:
    """Nanoseconds of a window by what they went to; the four parts add up to `window`."""

    window: int
    compute: int
    exposed_communication: int
    exposed_copy: int
    idle: int
    communication: int  # hidden or not

    @property
    def overlap_pct(self) -> float | None:
        """Share of communication that compute hides; None without communication."""
        return 100 * (1 - self.exposed_communication / self.communication) if self.communication else None

    def percent(self) -> dict[str, float]:
        """The parts in percent of the window."""
        return {part: 100 * getattr(self, part) / self.window if self.window else 0.0 for part in PARTS}


def activity(trace: Trace) -> Activity | None:
    """The GPU's activity, or the CPU's in a trace without one; None where neither did anything."""
    if on_gpu := bool(trace.on_gpu.any()):
        kernels = trace.category == KERNEL
        talks = communicates(trace.names)[trace.name] & kernels
        computes, copies = kernels & ~talks, trace.on_gpu & ~kernels
    else:
        operators = (trace.category == OPERATOR) & ~encloses_call(trace)
        talks = trace.starting(CPU_COMMUNICATION) & (operators | (trace.category == ANNOTATION))
        talks &= ~gloo_rows(trace) | waited_for(trace)
        computes, copies = operators & ~talks & ~trace.starting(CPU_WAITS), np.zeros(len(trace), dtype=bool)
    active = computes | talks | copies
    if not active.any():
        return None
    if not on_gpu:
        active |= trace.starting(("profilerstep#",))
    start, end = int(trace.start[active].min()), int(trace.end[active].max())
    return Activity(trace.spans(computes), trace.spans(talks), trace.spans(copies), start, end)


def breakdown(what: Activity) -> Breakdown:
    """The whole window's partition."""
    return breakdown_of_windows(what, np.array([what.start]), np.array([what.end]))[0]


def breakdown_of_windows(what: Activity, start: np.ndarray, end: np.ndarray) -> list[Breakdown]:
    """The same of each window [start, end), such as those of steps."""
    sets = (what.compute, what.exposed_communication, what.exposed_copies, what.communication)
    columns = [intervals.length_within(spans, start, end).tolist() for spans in sets]
    return [
        Breakdown(whole, compute, exposed, copies, whole - compute - exposed - copies, communication)
        for whole, compute, exposed, copies, communication in zip((end - start).tolist(), *columns, strict=True)
    ]
