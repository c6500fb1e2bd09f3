"""Launches that a CUDA graph would take off the host: runs of short kernels that the GPU waits for.

    host   l0 ─ l1 ─ l2 ─ l3 ─ ...      one launch each, microseconds of Python and framework between
    GPU      k0   k1   k2   k3          shorter than what lies between launches: idle before every one
    graph  l ─────                      all of them with one launch
    GPU      k0k1k2k3

    run    launches one after the other, none of whose kernels was queued, without a wait of the host or a load of
           data between; at least `LEAST_RUN` of them
    gain   the replay with those launches `NODE` apart (replay.py)

Likewise the time in which graphs are captured and code is compiled: in a recording after warm-up there should
be none. It is known by the names of calls and annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.replay import CAPTURES, LAUNCH, Recorded
from scalewright.diagnose.traces.trace import ANNOTATION, CALL, OPERATOR, Trace

LEAST_RUN = 20  # launches; fewer aren't worth a graph
PAUSE = 1_000_000  # ns of host work between two launches beyond which it isn't the model's: logging, a save
# ns between a graph's kernels: 3.4 us a kernel of 2.9 us (NVIDIA, "Getting Started with CUDA Graphs", 2019)
NODE = 500
COMPILES = ("dynamo_timed", "compile_inner", "compile_fx", "inductor_compile", "triton_compile", "bw_compiler")


@dataclass(frozen=True)
class Storms:
    """Runs of launches of one rank: how many, of how many kernels; median ns of a kernel, and from launch to launch."""

    runs: int
    kernels: int
    of: int
    kernel: float
    apart: float


def storms(recorded: Recorded) -> Storms:
    """The runs of a rank's launches."""
    runs = [*_runs(recorded)]
    places = [recorded.calls[index][3] for run in runs for index in run]
    works = [recorded.calls[index][1] for run in runs for index in run[1:]]
    kernel = float(np.median([recorded.duration[place] for place in places])) if places else 0.0
    return Storms(len(runs), len(places), len(recorded.start), kernel, float(np.median(works)) if works else 0.0)


def graphed(recorded: Recorded) -> Recorded:
    """The rank with every run launched as one graph."""
    calls = list(recorded.calls)
    for run in _runs(recorded):
        for index in run[1:]:
            kind, work, data, place, rest = calls[index]
            calls[index] = kind, min(work, NODE), data, place, rest
    return replace(recorded, calls=calls)


def _runs(recorded: Recorded) -> Iterator[list[int]]:
    """Indices of calls, run by run."""
    run: list[int] = []
    for index, (kind, work, data, place, _) in enumerate(recorded.calls):
        queued = kind != LAUNCH or not _waited_for(recorded, place)
        if run and (queued or data or work > PAUSE):
            if len(run) >= LEAST_RUN:
                yield run
            run = []
        if not queued:
            run.append(index)
    if len(run) >= LEAST_RUN:
        yield run


def _waited_for(recorded: Recorded, place: int) -> bool:
    """Whether the GPU stood idle until a kernel was launched: it began as soon as its launch allowed."""
    start = recorded.start[place]
    earlier = [before for before in (recorded.before[place], recorded.waits_for[place]) if before >= 0]
    ended = max((recorded.start[before] + recorded.duration[before] for before in earlier), default=start)
    return ended < start and recorded.rest[place] <= recorded.latency[place]


def without(recorded: Recorded, hidden: np.ndarray) -> Recorded:
    """The rank with the host's work in some intervals (int64 [n, 2], ns) taken away."""
    calls = list(recorded.calls)
    rows = [index for index, call in enumerate(calls) if call[0] == LAUNCH]
    end = np.array([recorded.called[calls[index][3]] for index in rows], dtype=np.int64)
    start = end - np.array([calls[index][1] for index in rows], dtype=np.int64)
    for index, less in zip(rows, intervals.length_within(hidden, start, end).tolist(), strict=True):
        kind, work, data, place, rest = calls[index]
        work = max(work - less, 0)
        calls[index] = kind, work, min(data, work), place, rest
    return replace(recorded, calls=calls)


def compiling(trace: Trace) -> np.ndarray:
    """When the host compiled or captured; int64 [n, 2]."""
    captures = (trace.category == CALL) & trace.containing(CAPTURES)
    return trace.spans(captures | (np.isin(trace.category, (ANNOTATION, OPERATOR)) & trace.containing(COMPILES)))
