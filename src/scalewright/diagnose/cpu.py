"""A rank without a GPU, as the replay takes it: operators are kernels that the host waits for at once.

    main thread   ██ aten::mm ██ py ██ mul ██│▒▒▒▒ waits ▒▒▒▒│██ aten::add ██
    Gloo                                all_reduce ▒▒▒▒▒▒▒▒▒▒▒│
    replay        host: py     kernel: mm + mul    collective          a wait of the host for the collective

    wait     a gap between operators of the main thread, up to the end of the last collective that ends in it
    data     the loader's part of the other gaps            host     the rest of them: Python, and sleep

The main thread is the one whose operators take the most time; a backward on a CPU runs in it, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import CPU_WAITS, Activity
from scalewright.diagnose.idle import CAUSES, Idle, loading
from scalewright.diagnose.replay import COMPUTES, LAUNCH, TALKS, WAIT, Recorded
from scalewright.diagnose.traces import trace as t
from scalewright.diagnose.traces.gloo import encloses_call, gloo_rows
from scalewright.diagnose.traces.trace import Trace

SHORT = 10_000  # ns: an operator that takes less costs its caller about as much again


@dataclass
class _Host:
    """The main thread: when it computed (int64 [n, 2]), and its waits for rows of Gloo's."""

    compute: np.ndarray
    waits: list[tuple[int, int, int]]  # begin, end, row
    begin: int
    end: int


def cpu_idle(trace: Trace, what: Activity) -> Idle:
    """The gaps between operators: the loader's, or the host's."""
    gaps = what.idle
    data = intervals.length_within(loading(trace), gaps[:, 0], gaps[:, 1])
    parts = {cause: np.zeros(len(gaps), dtype=np.int64) for cause in CAUSES}
    return Idle(gaps, parts | {"data": data, "host": gaps[:, 1] - gaps[:, 0] - data})


def short_operators(trace: Trace) -> tuple[int, int]:
    """Innermost operators shorter than `SHORT`, and all of them."""
    rows = np.flatnonzero((trace.category == t.OPERATOR) & (trace.lane == _main_lane(trace)))
    rows = rows[np.lexsort((-trace.end[rows], trace.start[rows]))]
    inner = np.concatenate((trace.start[rows[1:]] >= trace.end[rows[:-1]], np.ones(min(len(rows), 1), bool)))
    length = (trace.end - trace.start)[rows[inner]]
    return int((length < SHORT).sum()), len(length)


def record_cpu(trace: Trace, collective: np.ndarray) -> Recorded:
    """A rank's dependencies; `collective`: of each row its number or -1."""
    host, recorded = _host(trace), Recorded()
    rows = np.flatnonzero(gloo_rows(trace))
    place: dict[int, int] = {}
    loads = loading(trace)
    recorded.begin = now = host.begin

    def add(start: int, length: int, role: int, number: int = -1, rest: int = 0) -> int:
        recorded.start.append(start)
        recorded.duration.append(length)
        recorded.role.append(role)
        recorded.collective.append(number)
        recorded.rest.append(rest)
        return len(recorded.start) - 1

    def work_until(when: int) -> None:
        """The operators since the last call are a kernel, the rest of that time is the host's."""
        span = (np.array([now]), np.array([when]))
        computed = int(intervals.length_within(host.compute, *span)[0])
        free = intervals.minus(intervals.union(*span), host.compute)
        data = int(intervals.length(intervals.overlap(free, loads)))
        if computed:
            kernel = add(now + (when - now - computed), computed, COMPUTES)
            recorded.calls.append((LAUNCH, when - now - computed, data, kernel, 0))
            recorded.calls.append((WAIT, 0, 0, kernel, 0))
        else:
            recorded.calls.append((LAUNCH, when - now, data, add(when, 0, COMPUTES), 0))

    recorded.calls.append((LAUNCH, 0, 0, add(now, 0, COMPUTES), 0))  # where the window begins
    events = [(int(trace.start[row]), 0, int(row)) for row in rows.tolist()]
    events += [(begin, 1 + end, row) for begin, end, row in host.waits]
    for when, until, row in sorted(events):
        if when > now:
            work_until(when)
            now = when
        if not until:
            length = int(trace.end[row] - trace.start[row])
            place[row] = add(when, length, TALKS, int(collective[row]), rest=when - now)
            recorded.calls.append((LAUNCH, 0, 0, place[row], 0))
        elif until - 1 > now and row in place:
            ended = int(trace.end[row])
            recorded.calls.append((WAIT, 0, 0, place[row], until - 1 - max(now, ended)))
            now = until - 1
    work_until(max(host.end, now))
    count = len(recorded.start)
    recorded.before, recorded.waits_for, recorded.latency = [-1] * count, [-1] * count, [0] * count
    recorded.proven = [False] * count
    recorded.kind, recorded.called = [""] * count, [*recorded.start]
    return recorded


def _main_lane(trace: Trace) -> int:
    rows = np.flatnonzero(trace.category == t.OPERATOR)
    if not len(rows):
        return -1
    return int(np.bincount(trace.lane[rows], weights=(trace.end - trace.start)[rows]).argmax())


def _host(trace: Trace) -> _Host:
    works = (trace.category == t.OPERATOR) & ~encloses_call(trace) & ~trace.starting(CPU_WAITS)
    rows = np.flatnonzero(works & (trace.lane == _main_lane(trace)))
    busy = intervals.union(trace.start[rows], trace.end[rows])
    gloo = np.flatnonzero(gloo_rows(trace))
    both = np.concatenate((rows, gloo))
    if not len(both):
        both = np.arange(len(trace))  # ranges alone: nothing to change, but a window
    begin, end = int(trace.start[both].min()), int(trace.end[both].max())
    gaps = intervals.gaps(busy, begin, end)
    gloo = gloo[np.argsort(trace.end[gloo], kind="stable")]
    last = np.searchsorted(trace.end[gloo], gaps[:, 1], side="right") - 1
    waits = []
    for (start, _), k in zip(gaps.tolist(), last.tolist(), strict=True):
        if k >= 0 and trace.end[gloo[k]] > start:
            begun = max(start, int(trace.start[gloo[k]]))  # before that, none of Gloo's threads had it
            waits.append((begun, int(trace.end[gloo[k]]), int(gloo[k])))
    return _Host(busy, waits, begin, end)
