"""Replays a trace with something changed: its length with a faster loader, host, link or rank.

    host     l0 ── l1 ── data ── l2 ── sync ─────┐ l3          a launch comes when the host gets to it
    stream 7    k0 ─ k1          └► k2           └► k3     a kernel when launch, stream, dependencies allow
    rank 1            ▒▒▒▒▒▒█ collective: ends when the last rank has come, and its transfer is done

    start of a kernel = max(its launch + latency, end before it on its stream, end of what it waits for) + rest
    end               = start + duration, of a matched collective max over ranks of start + transfer + rest
    the host          = the last call + the work between them; a call that waited, waits for the same kernel

`rest` is what of the recorded times none of these explains. It is kept, so that a replay without a change gives the
recorded times exactly, and a change moves what depends on it. What a kernel of another stream waits for isn't recorded:
every kernel is taken to depend on the last one that ended before it, so that what ran one after the other stays so, and
gains are no larger than they would be. Nothing waits for a send. A kernel that was launched when that one had ended may
not depend on it: the host's waiting kept them apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.collectives import Clocks, Matched
from scalewright.diagnose.idle import loading
from scalewright.diagnose.traces.kinds import COMMUNICATION, kinds_of
from scalewright.diagnose.traces.trace import CALL, KERNEL, Trace

BLOCKED = 100_000  # ns in a call of the runtime beyond which it waited for the GPU rather than worked
# Calls that work however long they take: a graph's capture.
CAPTURES = ("begincapture", "endcapture", "graphinstantiate", "graphcreate")
COMPUTES, COPIES, TALKS, RECEIVES = 0, 1, 2, 3  # RECEIVES: a message that isn't matched, mostly waiting
ROUNDING = 1_000  # ns, of recorded times: what ends so much later may still be waited for
LONGEST = 5  # times the usual latency of a launch: beyond, something else held the kernel
LAUNCH, WAIT, QUEUED = 0, 1, 2  # QUEUED: launched before the recording, so that no call is known


@dataclass(frozen=True)
class Change:
    """Factors on recorded times, 1 for none.

    host       the host's work between its calls       data      the data loader's part of it
    compute    kernels that compute                    copies    copies between memories
    transfer   collectives, without the waiting inside those that are matched over ranks
    kinds      kernels of single kinds (traces/kinds.py), beside the factor of their role
    groups     the transfer of single process groups whose collectives are matched
    waits      whether the host waits for the GPU where it did
    proven     whether such waits count only where the kernel was launched before what it waits for ended
    streams    whether a kernel waits for the last one of another stream that ended before it
    hides      whether computation no longer waits for collectives of other streams: they run beside it
    ranks      places in the list of traces to which all but `transfer` and `groups` apply; None for all
    """

    host: float = 1.0
    data: float = 1.0
    compute: float = 1.0
    copies: float = 1.0
    transfer: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)
    waits: bool = True
    proven: bool = False
    streams: bool = True
    hides: bool = False
    ranks: frozenset[int] | None = None


def combined(changes: Sequence[Change], rank: int) -> Change:
    """All changes as they apply to one rank: factors multiply."""
    mine = [change for change in changes if change.ranks is None or rank in change.ranks]
    return Change(
        host=math.prod(change.host for change in mine),
        data=math.prod(change.data for change in mine),
        compute=math.prod(change.compute for change in mine),
        copies=math.prod(change.copies for change in mine),
        transfer=math.prod(change.transfer for change in changes),
        kinds=_products(change.kinds for change in mine),
        waits=all(change.waits for change in mine),
        proven=any(change.proven for change in mine),
        streams=all(change.streams for change in mine),
        hides=any(change.hides for change in mine),
    )


def _products(factors: Iterable[Mapping[str, float]]) -> dict[str, float]:
    result: dict[str, float] = defaultdict(lambda: 1.0)
    for name, factor in (item for by_name in factors for item in by_name.items()):
        result[name] *= factor
    return result


@dataclass
class Recorded:
    """One rank's calls in the host's order, and its kernels with what each depends on; nanoseconds.

    calls     (kind, work since the call before, of that in the data loader, kernel, rest)
    kernels   by the order of their launches: start, duration, role, kind; the kernel before it on its stream,
              the one it waits for (-1: none) and whether that is proven, latency of its launch, rest; the
              collective it belongs to (-1: none); when it was launched
    receives  of a kernel that computes the receive launched right before it, which it works on
    """

    calls: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)  # of a copy: empty
    before: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    proven: list[bool] = field(default_factory=list)
    latency: list[int] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)
    collective: list[int] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    receives: dict[int, int] = field(default_factory=dict)
    begin: int = 0


# Yields (collective, start) where it comes to one, (collective, None) where it needs its end; is sent the
# end, or None where that isn't known yet.
Rank = Generator[tuple[int, int | None], int | None, tuple[int, int]]


def record(trace: Trace, collective: np.ndarray) -> Recorded:
    """A rank's dependencies; `collective`: of each row its number or -1."""
    rows, kinds, never = np.flatnonzero(trace.on_gpu), kinds_of(trace.names), np.iinfo(np.int64).min
    launch = trace.launches[rows]
    called = np.where(launch >= 0, trace.start[launch], never)
    order = np.lexsort((trace.start[rows], called))
    rows, launch, called = rows[order], launch[order], called[order]
    start, end = trace.start[rows], trace.end[rows]
    calls, times, begin = _calls(trace, rows, launch, end)
    called = np.where(launch >= 0, times, called)
    before = _before_on_lane(trace.lane[rows], start)
    waits_for = _waits_for(start, end, ~np.isin(rows, _messages(trace, "send")))
    kernels, talks = trace.category[rows] == KERNEL, kinds[trace.name[rows]] == COMMUNICATION
    ended = np.maximum(np.where(before >= 0, end[before], never), np.where(waits_for >= 0, end[waits_for], never))
    latency = _latency(start, called, ended, launch >= 0)
    ready = np.maximum(called + latency, ended)
    known = (launch >= 0) | (before >= 0) | (waits_for >= 0)
    return Recorded(
        calls=calls,
        start=start.tolist(),
        duration=(end - start).tolist(),
        role=np.where(talks, TALKS, np.where(kernels, COMPUTES, COPIES)).tolist(),
        kind=np.where(kernels, kinds[trace.name[rows]], "").tolist(),
        before=before.tolist(),
        waits_for=waits_for.tolist(),
        proven=((waits_for >= 0) & (called < end[waits_for])).tolist(),
        latency=latency.tolist(),
        rest=np.where(known, start - ready, start).tolist(),
        collective=collective[rows].tolist(),
        called=called.tolist(),
        receives=_receives(np.isin(rows, _messages(trace, "recv")), ~talks, start, end),
        begin=begin,
    )


def _calls(
    trace: Trace, rows: np.ndarray, launch: np.ndarray, end: np.ndarray
) -> tuple[list[tuple[int, int, int, int, int]], np.ndarray, int]:
    """The host's calls in order, when each kernel was launched on the host's line of time, and its begin."""
    long = (trace.category == CALL) & (trace.end - trace.start > BLOCKED)
    waits = np.flatnonzero(long & ~trace.containing(CAPTURES))
    by_end = np.argsort(end, kind="stable")
    last = by_end[np.maximum(np.searchsorted(end[by_end], trace.end[waits], side="right") - 1, 0)]
    waited = (end[last] > trace.start[waits]) & (end[last] <= trace.end[waits])
    waits, last = waits[waited], last[waited]
    launches = np.flatnonzero(launch >= 0)
    kind = np.concatenate((np.full(len(launches), LAUNCH), np.full(len(waits), WAIT)))
    begun = np.concatenate((trace.start[launch[launches]], trace.start[waits]))
    done = np.concatenate((trace.start[launch[launches]], trace.end[waits]))
    kernel = np.concatenate((launches, last))
    order = np.lexsort((kind, begun))
    kind, begun, done, kernel = kind[order], begun[order], done[order], kernel[order]
    done = np.maximum.accumulate(done)
    previous = np.concatenate((begun[:1], done[:-1]))
    begun = np.maximum(begun, previous)
    data = intervals.length_within(loading(trace), previous, begun)
    rest = np.where(kind == WAIT, done - np.maximum(begun, end[kernel]), 0)
    times = np.zeros(len(rows), dtype=np.int64)
    times[kernel[kind == LAUNCH]] = begun[kind == LAUNCH]
    columns = (kind, begun - previous, np.minimum(data, begun - previous), kernel, rest)
    queued = [(QUEUED, 0, 0, place, 0) for place in np.flatnonzero(launch < 0).tolist()]
    begin = int(previous[0]) if len(previous) else int(trace.start[rows].min())
    return queued + list(zip(*(column.tolist() for column in columns), strict=True)), times, begin


def _messages(trace: Trace, name: str) -> list[int]:
    """Rows of sends or of receives."""
    return [row for row, known in trace.collectives.items() if known.name == name]


def _receives(receives: np.ndarray, works: np.ndarray, start: np.ndarray, end: np.ndarray) -> dict[int, int]:
    """The receive launched right before a kernel that computes, if it had ended when the kernel began."""
    after = np.flatnonzero(works)
    result: dict[int, int] = {}
    for place in np.flatnonzero(receives).tolist():
        following = int(np.searchsorted(after, place))
        if following < len(after) and end[place] <= start[after[following]] + ROUNDING:
            result[int(after[following])] = place
    return result


def _before_on_lane(lane: np.ndarray, start: np.ndarray) -> np.ndarray:
    """For each kernel the place of the one before it on its stream; -1 for the first."""
    order = np.lexsort((start, lane))
    before = np.full(len(lane), -1, dtype=np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return np.where(before < np.arange(len(lane)), before, -1)


def _latency(start: np.ndarray, called: np.ndarray, ended: np.ndarray, launched: np.ndarray) -> np.ndarray:
    """From a launch to its kernel's start: seen where nothing else held it, the median of those elsewhere."""
    seen = launched & (called >= ended) & (start >= called)
    if not seen.any():
        return np.zeros(len(start), dtype=np.int64)
    usual = int(np.median((start - called)[seen]))
    return np.asarray(np.where(seen & (start - called <= LONGEST * usual), start - called, usual) * launched)


def _waits_for(start: np.ndarray, end: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each kernel the last of `among`, of any stream, that ended before it started; -1 for none."""
    order = np.flatnonzero(among)
    order = order[np.argsort(end[order], kind="stable")]
    if not len(order):
        return np.full(len(start), -1, dtype=np.int64)
    last = order[np.maximum(np.searchsorted(end[order], start + ROUNDING, side="right") - 1, 0)]
    begun = (end[last] <= start + ROUNDING) & (start[last] < start) & (last < np.arange(len(start)))
    return np.where(begun, last, -1)


def replay(recorded: Sequence[Recorded], matched: Sequence[Matched], clocks: Clocks, changes: Sequence[Change]) -> int:
    """Nanoseconds from the first kernel's start on any rank to the last one's end, with all of `changes`."""
    whole, groups = math.prod(change.transfer for change in changes), _products(c.groups for c in changes)
    ends = _Collectives(matched, clocks, [whole * groups.get(group.group, 1.0) for group in matched])
    running = {rank: _run(some, combined(changes, rank)) for rank, some in enumerate(recorded)}
    inbox: dict[int, int | None] = dict.fromkeys(running)  # what a rank is sent; None to begin
    needed: dict[int, int] = {}  # the collective whose end a rank waits for
    known: dict[tuple[int, int], int] = {}  # (rank, collective) -> an end that nobody has asked for yet
    spans: list[tuple[int, int]] = []

    def hand_out(number: int, finished: list[tuple[int, int]]) -> None:
        for rank, end in finished:
            if needed.get(rank) == number:
                del needed[rank]
                inbox[rank] = end
            else:
                known[rank, number] = end

    while running:
        moved = False
        for rank in [*running]:
            try:
                while rank in inbox:
                    number, start = running[rank].send(inbox.pop(rank))
                    moved = True
                    if start is not None:
                        hand_out(number, ends.arrive(number, rank, start))
                        inbox[rank] = known.pop((rank, number), None)
                    elif (rank, number) in known:
                        inbox[rank] = known.pop((rank, number))
                    else:
                        needed[rank] = number
            except StopIteration as stop:
                first, last = stop.value
                spans.append((first - int(clocks.offset[rank]), last - int(clocks.offset[rank])))
                del running[rank]
                moved = True
        if not moved:  # the ranks' orders contradict each other: collectives that wait keep their own length
            hand_out(*ends.give_up())
    return max(last for _, last in spans) - min(first for first, _ in spans)


def _run(some: Recorded, change: Change) -> Rank:
    """One rank in the host's order; yields at matched collectives, returns its first start and last end.

    It goes on past a collective whose end isn't known until something depends on it: a pipeline's sends and
    receives are launched in orders that differ between ranks.
    """
    host, first = some.begin, some.begin + (1 << 62)
    factors = (change.compute, change.copies, change.transfer, 1.0)
    end = [0] * len(some.start)
    unknown: dict[int, int] = {}  # kernel -> its collective
    for kind, work, data, place, rest in some.calls:
        host += round((work - data) * change.host + data * change.data)
        if kind == WAIT:
            if place in unknown:
                end[place] = yield from _end_of(unknown.pop(place))
            if change.waits:
                host = max(host, end[place]) + rest
            continue
        before, waits_for = some.before[place], some.waits_for[place] if change.streams else -1
        if change.proven and waits_for >= 0 and not some.proven[place]:
            waits_for = -1
        while change.hides and waits_for >= 0 and TALKS == some.role[waits_for] != some.role[place]:
            waits_for = some.waits_for[waits_for]
        received = some.receives.get(place, -1) if some.receives else -1
        if unknown:
            for earlier in (before, waits_for, received):
                if earlier in unknown:
                    end[earlier] = yield from _end_of(unknown.pop(earlier))
        start = host + some.latency[place] if kind == LAUNCH else 0
        start = max(start, end[before] if before >= 0 else 0, end[waits_for] if waits_for >= 0 else 0)
        start = max(start, end[received]) if received >= 0 else start
        start += some.rest[place]
        first = min(first, start)
        if some.collective[place] >= 0:
            done = yield some.collective[place], start
            if done is None:
                unknown[place] = some.collective[place]
            else:
                end[place] = done
        else:
            factor = factors[some.role[place]] * change.kinds.get(some.kind[place], 1.0)
            end[place] = start + round(some.duration[place] * factor)
    for place, number in unknown.items():
        end[place] = yield from _end_of(number)
    return first, max(end, default=first)


def _end_of(number: int) -> Generator[tuple[int, None], int | None, int]:
    """Waits for the end of a collective that its rank came to before."""
    end = yield number, None
    assert end is not None  # it is sent once it is known
    return end


def held_up(some: Recorded) -> np.ndarray:
    """When a rank's host waited for it, and all computation launched before had ended; int64 [n, 2]."""
    host, computed = some.begin, 0
    spans: list[tuple[int, int]] = []
    for kind, work, _, place, rest in some.calls:
        host += work
        end = some.start[place] + some.duration[place]
        if kind == WAIT:
            done = max(host, end) + rest
            spans.append((max(host, computed), done))
            host = done
        elif some.role[place] != TALKS:
            computed = max(computed, end)
    waits = np.array([span for span in spans if span[1] > span[0]], dtype=np.int64).reshape(-1, 2)
    return intervals.union(waits[:, 0], waits[:, 1])


class _Collectives:
    """Ends of matched collectives, as their ranks arrive; numbered group by group."""

    def __init__(self, matched: Sequence[Matched], clocks: Clocks, factors: Sequence[float]) -> None:
        self.waiting: dict[int, dict[int, int]] = {}
        self.ranks: list[list[int]] = []
        self.transfer: list[int] = []
        self.rest: list[dict[int, int]] = []
        self.offset = clocks.offset.tolist()
        for group, factor in zip(matched, factors, strict=True):
            offset = clocks.offset[group.ranks]
            end = (group.start - offset).max(axis=1) + group.transfer
            rest = group.end - offset - end[:, None]
            for index, transfer in enumerate(group.transfer.tolist()):
                self.ranks.append(group.ranks)
                self.transfer.append(round(transfer * factor))
                self.rest.append(dict(zip(group.ranks, rest[index].tolist(), strict=True)))

    def arrive(self, number: int, rank: int, start: int) -> list[tuple[int, int]]:
        """The ranks that go on, with their ends; none until the last one came."""
        arrived = self.waiting.setdefault(number, {})
        arrived[rank] = start - self.offset[rank]
        return self._finish(number) if len(arrived) == len(self.ranks[number]) else []

    def give_up(self) -> tuple[int, list[tuple[int, int]]]:
        """The first of those that wait for ranks which wait for them, and its ends."""
        number = min(self.waiting)
        return number, self._finish(number)

    def _finish(self, number: int) -> list[tuple[int, int]]:
        arrived = self.waiting.pop(number)
        end = max(arrived.values()) + self.transfer[number]
        return [(rank, end + self.rest[number][rank] + self.offset[rank]) for rank in arrived]
