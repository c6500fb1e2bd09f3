"""A rank without a GPU, as the replay takes it: operators are kernels that the host waits for at once.

    main thread   ██ aten::mm ██ py ██ mul ██│▒▒▒▒ waits ▒▒▒▒│██ aten::add ██
    Gloo                                all_reduce ▒▒▒▒▒▒▒▒▒▒▒│
    replay        host: py     kernel: mm + mul    collective          a wait of the host for the collective

    wait     a gap between operators of the main thread, up to the end of the last collective that ends in it
    data     the loader's part of the other gaps            host     the rest of them: Python, and sleep

The main thread is the one whose operators take the most time; a backward on a CPU runs in it, too.

    storm    operators one after the other, hundreds of them and nearly all short: most of their time is
             what a call costs, and one fused operator in their place would take next to none of it
    each     what recording cost every operator (steps.py), taken off before anything is changed
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import CPU_WAITS, Activity
from scalewright.diagnose.idle import CAUSES, Idle, loading
from scalewright.diagnose.replay import COMPUTES, LAUNCH, RECEIVES, TALKS, WAIT, Recorded
from scalewright.diagnose.traces.gloo import RECEIVE, encloses_call, waited_for
from scalewright.diagnose.traces.trace import OPERATOR, Trace

SHORT = 10_000  # ns: an operator that takes less costs its caller about as much again
LEAST_RUN = 200  # operators of a storm
PAUSE = 1_000_000  # ns between two of them, beyond which it isn't the model's Python: a save, a report
LONG = 100_000  # ns of an operator that ends a storm; shorter ones may be short ones that another process held
NEARLY_ALL = 0.9
LEFT = 0.2  # of an operator's time at least remains when what recording cost is taken off


@dataclass(frozen=True)
class Less:
    """What isn't counted: `each` nanoseconds of every operator, and a part of some time (int64 [n, 2])."""

    each: float = 0.0
    within: np.ndarray = field(default_factory=lambda: intervals.EMPTY)
    part: float = 0.0


@dataclass(frozen=True)
class Storms:
    """When operators are a storm (int64 [n, 2]), how many they are, and the share of it that calls take."""

    spans: np.ndarray
    operators: int
    calls: float


@dataclass
class _Host:
    """The main thread: its operators' starts (int64 [n]), when it computed, and loaded data beside nothing."""

    starts: np.ndarray
    compute: np.ndarray  # int64 [n, 2]
    data: np.ndarray  # int64 [n, 2]
    waits: list[tuple[int, int, int]]  # begin, end, row of Gloo's

    def work(self, begin: int, end: int, less: Less) -> tuple[int, int, int]:
        """Nanoseconds of [begin, end) in operators, of the rest, and of that in the loader."""
        operators, computed, other, data = self._counted(begin, end)
        if less.part:
            for lower, upper in intervals.overlap(np.array([[begin, end]]), less.within).tolist():
                inside = self._counted(lower, upper)
                operators -= less.part * inside[0]
                computed -= less.part * inside[1]
                other -= less.part * (inside[2] - inside[3])
        recording = less.each * operators
        free = min(recording, (1 - LEFT) * computed)
        return round(computed - free), round(max(other - (recording - free), data)), round(data)

    def _counted(self, begin: int, end: int) -> tuple[float, float, float, float]:
        span = (np.array([begin]), np.array([end]))
        computed, data = (float(intervals.length_within(some, *span)[0]) for some in (self.compute, self.data))
        first, last = np.searchsorted(self.starts, (begin, end)).tolist()
        return float(last - first), computed, end - begin - computed, data


def cpu_idle(trace: Trace, what: Activity) -> Idle:
    """The gaps between operators: the loader's, or the host's."""
    gaps = what.idle
    data = intervals.length_within(loading(trace), gaps[:, 0], gaps[:, 1])
    parts = {cause: np.zeros(len(gaps), dtype=np.int64) for cause in CAUSES}
    parts |= {"data": data, "host": gaps[:, 1] - gaps[:, 0] - data}
    return Idle(gaps, parts, np.zeros(len(gaps), dtype=bool))


def short_operators(trace: Trace) -> tuple[int, int]:
    """Innermost operators shorter than `SHORT`, and all of them."""
    start, end, _ = _innermost(trace)
    return int((end - start < SHORT).sum()), len(start)


def operator_storms(trace: Trace) -> Storms:
    """The runs of short operators."""
    start, end, name = _innermost(trace)
    usual = _medians(end - start, name, len(trace.names))
    brief = (end - start < LONG) | ((usual[name] < SHORT) & (end - start < PAUSE))
    linked = np.zeros(len(start), dtype=bool)  # to the next one
    linked[:-1] = (start[1:] - end[:-1] < PAUSE) & brief[:-1] & brief[1:]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], linked.astype(np.int8), [0])))).reshape(-1, 2)
    spans, operators, calls = [], 0, 0
    for first, last in edges.tolist():  # operators first..last, the last one included
        count = last - first + 1
        short = np.count_nonzero(usual[name[first : last + 1]] < SHORT)
        if count < LEAST_RUN or short < NEARLY_ALL * count:
            continue
        spans.append((int(start[first]), int(end[last])))
        operators += count
        calls += int(np.minimum(np.diff(start[first : last + 1]), SHORT).sum())
    runs = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return Storms(runs, operators, calls / max(intervals.length(runs), 1))


def _medians(length: np.ndarray, name: np.ndarray, names: int) -> np.ndarray:
    """The median length of each name's rows, the upper one of two; 0 for names without any."""
    order = np.lexsort((length, name))
    count = np.bincount(name, minlength=names)
    first = np.cumsum(count) - count
    result = np.zeros(names)
    some = count > 0
    result[some] = length[order][(first + count // 2)[some]]
    return result


def record_cpu(trace: Trace, what: Activity, collective: np.ndarray, less: Less | None = None) -> Recorded:
    """A rank's dependencies; `collective`: of each row its number or -1; `less`: what isn't counted."""
    host, recorded, less = _host(trace, what), Recorded(), less or Less()
    place: dict[int, int] = {}
    receives = trace.starting((RECEIVE,))
    recorded.begin = now = what.start
    columns = (recorded.start, recorded.duration, recorded.role, recorded.collective, recorded.rest)

    def add(start: int, length: int, role: int, number: int = -1, rest: int = 0) -> int:
        for column, value in zip(columns, (start, length, role, number, rest), strict=True):
            column.append(value)
        return len(recorded.start) - 1

    def work_until(when: int) -> None:
        """The operators since the last call are a kernel, the rest of that time is the host's."""
        computed, other, data = host.work(now, when, less)
        kernel = add(now + other if computed else when, computed, COMPUTES)
        recorded.calls.append((LAUNCH, other, data, kernel, 0))
        if computed:
            recorded.calls.append((WAIT, 0, 0, kernel, 0))

    recorded.calls.append((LAUNCH, 0, 0, add(now, 0, COMPUTES), 0))  # where the window begins
    events = [(int(trace.start[row]), 0, int(row)) for row in np.flatnonzero(waited_for(trace)).tolist()]
    events += [(begin, 1 + end, row) for begin, end, row in host.waits]
    for when, until, row in sorted(events):
        if when > now:
            work_until(when)
            now = when
        begun, ended = int(trace.start[row]), int(trace.end[row])
        if not until:
            role = RECEIVES if receives[row] else TALKS
            place[row] = add(when, ended - begun, role, int(collective[row]), rest=when - now)
            recorded.calls.append((LAUNCH, 0, 0, place[row], 0))
        elif until - 1 > now and row in place:
            recorded.calls.append((WAIT, 0, 0, place[row], until - 1 - max(now, ended)))
            now = until - 1
    work_until(max(what.end, now))
    count = len(recorded.start)
    recorded.before, recorded.waits_for, recorded.latency = [-1] * count, [-1] * count, [0] * count
    recorded.proven, recorded.kind, recorded.called = [False] * count, [""] * count, [*recorded.start]
    return recorded


def main_operators(trace: Trace) -> np.ndarray:
    """Rows of the main thread's operators."""
    rows = np.flatnonzero(trace.category == OPERATOR)
    if not len(rows):
        return rows
    main = np.bincount(trace.lane[rows], weights=(trace.end - trace.start)[rows]).argmax()
    return np.asarray(rows[trace.lane[rows] == main])


def _innermost(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end and name of the main thread's operators that contain no other, in order."""
    rows = main_operators(trace)
    rows = rows[np.lexsort((-trace.end[rows], trace.start[rows]))]
    inner = np.concatenate((trace.start[rows[1:]] >= trace.end[rows[:-1]], np.ones(min(len(rows), 1), bool)))
    rows = rows[inner]
    return trace.start[rows], trace.end[rows], trace.name[rows]


def _host(trace: Trace, what: Activity) -> _Host:
    works = (trace.category == OPERATOR) & ~encloses_call(trace) & ~trace.starting(CPU_WAITS)
    operators = main_operators(trace)
    rows = operators[works[operators]]
    busy = trace.spans(rows)
    gaps = intervals.gaps(busy, what.start, what.end)
    gloo = np.flatnonzero(waited_for(trace))
    gloo = gloo[np.argsort(trace.end[gloo], kind="stable")]
    last = np.searchsorted(trace.end[gloo], gaps[:, 1], side="right") - 1
    waits = []
    for start, row in zip(gaps[last >= 0, 0].tolist(), gloo[last[last >= 0]].tolist(), strict=True):
        if trace.end[row] > start:  # before its own start, none of Gloo's threads had it
            waits.append((max(start, int(trace.start[row])), int(trace.end[row]), row))
    return _Host(np.sort(trace.start[rows]), busy, intervals.minus(loading(trace), busy), waits)
