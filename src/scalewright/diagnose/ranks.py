"""The traces of a run's ranks, each analysed by itself, then together, for `verdicts.py` and `answer.py`.

files ──► Trace ──► Activity ──► Breakdown, Idle, Steps       a rank by itself
             └────► Matched, Clocks ──► stragglers, replay    what they did together
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.bandwidths import Bandwidth, bandwidths
from scalewright.diagnose.breakdown import Activity, Breakdown, activity, breakdown
from scalewright.diagnose.collectives import Clocks, Matched, clocks, match, numbers
from scalewright.diagnose.cpu import Less, cpu_idle, record_cpu
from scalewright.diagnose.idle import Idle, idle_causes, loading
from scalewright.diagnose.pipeline_steps import PipelineStep, read_steps
from scalewright.diagnose.replay import COMPUTES, Change, Recorded, held_up, record, replay
from scalewright.diagnose.steps import ProfilerCost, Steps, profiler_cost, steps
from scalewright.diagnose.stragglers import Straggler, stragglers
from scalewright.diagnose.traces.gloo import RECEIVE, name_groups
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.kineto import read_kineto
from scalewright.diagnose.traces.nsys import MAGIC, read_nsys
from scalewright.diagnose.traces.trace import CALL, Trace
from scalewright.diagnose.traces.unpack import beginning
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.spec.hardware.cluster import ClusterSpec

OURS = re.compile(r"^step-(\d{1,12})-rank\d")
STAMP = re.compile(r"\d{9,}")  # of a name: a recorder that begins again writes another file of the same rank
DATES, HOUR = 10**18, 3600 * 10**9  # nanoseconds: from 2001 on a clock has dates, which hosts agree on to an hour
MOST = 4  # runs that are named
LARGE = 64 << 20  # bytes of files above which a process for each core reads them


@dataclass(frozen=True)
class Rank:
    """One rank's trace and what follows from it alone."""

    trace: Trace
    activity: Activity
    breakdown: Breakdown
    idle: Idle
    steps: Steps

    @property
    def data(self) -> int:
        """Nanoseconds of the steps in which the host loaded data and the device had nothing to do."""
        exposed = intervals.minus(loading(self.trace), self.activity.busy)
        return int(intervals.length_within(exposed, self.steps.host_start, self.steps.host_end).sum())

    @property
    def stepped(self) -> int:
        """Nanoseconds of all steps by the host's windows."""
        return int((self.steps.host_end - self.steps.host_start).sum())


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run, in the order of their numbers, and lines about what couldn't be used."""

    ranks: list[Rank]
    matched: list[Matched]
    clocks: Clocks
    warnings: list[str]
    pipeline: list[PipelineStep] = field(default_factory=list)  # the actions of one pipeline's steps
    cluster: ClusterSpec | None = None  # whose links they should reach

    @property
    def window(self) -> int:
        """Nanoseconds from the first rank's first activity to the last one's last, by aligned clocks."""
        offset = self.clocks.offset
        ends = np.array([rank.activity.end for rank in self.ranks]) - offset
        return int(ends.max()) - self.begin

    @property
    def begin(self) -> int:
        """When the first rank's first activity began, by aligned clocks."""
        return int((np.array([rank.activity.start for rank in self.ranks]) - self.clocks.offset).min())

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Ranks that the others waited for."""
        together = [group for group in self.matched if not group.message]
        return stragglers(together, [r.activity for r in self.ranks], [r.idle for r in self.ranks], self.window)

    @cached_property
    def bandwidths(self) -> list[Bandwidth]:
        """How fast collectives were, by group and kind."""
        return bandwidths([rank.trace for rank in self.ranks], self.matched, self.cluster)

    @cached_property
    def waited(self) -> list[int]:
        """Nanoseconds that each rank waited in collectives for another to come, with nothing beside it."""
        return self._waited(messages=None)

    @cached_property
    def waited_for_messages(self) -> list[int]:
        """Of these, those in sends and receives: a pipeline's idle time."""
        return self._waited(messages=True)

    @cached_property
    def kept_apart(self) -> list[int]:
        """Nanoseconds of each rank's exposed communication, beyond waiting for others, in which the host waits and has
        nothing launched that could run.
        """
        apart = []
        for place, (rank, recorded) in enumerate(zip(self.ranks, self.recorded, strict=True)):
            transferring = intervals.minus(rank.activity.exposed_communication, self.waits(place))
            apart.append(intervals.length(intervals.overlap(held_up(recorded), transferring)))
        return apart

    def _waited(self, messages: bool | None) -> list[int]:
        waits = [self.waits(place, messages) for place in range(len(self.ranks))]
        exposed = [rank.activity.exposed_communication for rank in self.ranks]
        return [intervals.length(both) for both in map(intervals.overlap, waits, exposed)]

    def waits(self, place: int, messages: bool | None = None) -> np.ndarray:
        """When a rank was in a matched collective that another hadn't come to; int64 [n, 2].

        Gloo's messages aren't matched: of a pipeline whose actions are known, a rank waits within them.
        """
        mine = [(group, group.ranks.index(place)) for group in self.matched if place in group.ranks]
        spans = [
            intervals.union(group.start[:, column], group.start[:, column] + group.wait[:, column])
            for group, column in mine
            if messages is None or group.message == messages
        ]
        if self.pipeline and not self.on_gpu:  # it had asked for a message, and was in no matched collective
            trace = self.ranks[place].trace
            together = [intervals.union(group.start[:, column], group.end[:, column]) for group, column in mine]
            spans.append(intervals.minus(trace.spans(trace.starting((RECEIVE,))), intervals.merge(*together)))
        return intervals.merge(*spans)

    @cached_property
    def recorded(self) -> list[Recorded]:
        """Each rank's calls and kernels with what they depend on."""
        if not self.on_gpu:
            return self.recorded_without([intervals.EMPTY] * len(self.ranks), 0.0)
        return [record(rank.trace, places) for rank, places in zip(self.ranks, self._numbers, strict=True)]

    def recorded_without(self, within: Sequence[np.ndarray], part: float) -> list[Recorded]:
        """The same of ranks without a GPU, with a part of what a rank's main thread did in some time gone."""
        each = self.recording.each if self.recording else 0.0
        return [
            record_cpu(rank.trace, rank.activity, places, Less(each, some, part))
            for rank, places, some in zip(self.ranks, self._numbers, within, strict=True)
        ]

    @cached_property
    def _numbers(self) -> list[np.ndarray]:
        return numbers([len(rank.trace) for rank in self.ranks], self.matched)

    @cached_property
    def recording(self) -> ProfilerCost | None:
        """What recording cost a run without a GPU, where the traces tell."""
        traces, steps = [rank.trace for rank in self.ranks], [rank.steps for rank in self.ranks]
        return None if self.on_gpu else profiler_cost(traces, steps)

    @cached_property
    def _replayed(self) -> int:
        """Nanoseconds of the window with nothing changed but what recording cost."""
        if self.recording is None:
            return self.window  # a replay without a change is exact
        return replay(self.recorded, self.matched, self.clocks, ())

    @property
    def host_work(self) -> list[int]:
        """Nanoseconds of each rank's host between its calls, without loading data and without waiting."""
        return [sum(work - data for _, work, data, _, _ in recorded.calls) for recorded in self.recorded]

    @property
    def compute_work(self) -> list[int]:
        """Nanoseconds that each rank computes; without a GPU less what recording cost."""
        if self.on_gpu or not self.replays:
            return [intervals.length(rank.activity.compute) for rank in self.ranks]
        return [
            sum(length for length, role in zip(recorded.duration, recorded.role, strict=True) if role == COMPUTES)
            for recorded in self.recorded
        ]

    @property
    def on_gpu(self) -> bool:
        """Whether every rank's trace has a GPU's activity."""
        return all(bool(rank.trace.on_gpu.any()) for rank in self.ranks)

    @property
    def replays(self) -> bool:
        """Whether the traces can be replayed: all with a GPU, or all without one."""
        return self.on_gpu or not any(bool(rank.trace.on_gpu.any()) for rank in self.ranks)

    def gain_with(self, recorded: Sequence[Recorded]) -> float:
        """Percent of the window that other ranks' records in place of theirs save, by replay; 0 without one."""
        return self._gain(recorded, ()) if self.replays else 0.0

    def gain(self, *changes: Change) -> float:
        """Percent of the window that changes save, by replay; 0 where there is nothing to replay."""
        return self._gain(self.recorded, changes) if self.replays else 0.0

    def _gain(self, recorded: Sequence[Recorded], changes: Sequence[Change]) -> float:
        return 100 * (1 - replay(recorded, self.matched, self.clocks, changes) / self._replayed)


def read_ranks(paths: Sequence[Path], cluster: ClusterSpec | None = None) -> Ranks:
    """Reads one file a rank; raises NotATrace where none has any activity, OSError as `open` does."""
    pipeline, broken, paths = read_steps(paths)
    if not paths:
        raise NotATrace("it has a pipeline's times alone, which are read beside its traces")
    paths, earlier = _last_steps(paths)
    if len(paths) > 1 and sum(path.stat().st_size for path in paths) > LARGE:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:
            read = [*pool.map(_read, paths)]
    else:
        read = [*map(_read, paths)]
    traces = [trace for result in read if not isinstance(result, str) for trace in result]
    refused = [result for result in read if isinstance(result, str)]
    if not traces:
        raise NotATrace(refused[0].partition(": ")[2])
    traces.sort(key=lambda trace: (trace.rank is None, trace.rank or 0, trace.path.name))
    warnings = [f"{text}: left out" for text in refused]
    warnings += [f"{path.name} can't be read: left out" for path in broken]
    if earlier:
        warnings.append(f"{counted(earlier, 'traces')} of earlier steps of the same ranks: left out")
    for trace in traces:
        warnings += [f"{trace.path.name}: {text}" if len(paths) > 1 else text for text in trace.warnings]
    ranks = []
    for trace in traces:
        what = activity(trace)
        if what is None or what.end <= what.start:
            warnings.append(f"{trace.path.name} contains no kernel, copy or operator: left out")
            continue
        idle = idle_causes(trace, what) if trace.on_gpu.any() else cpu_idle(trace, what)
        ranks.append(Rank(trace, what, breakdown(what), idle, steps(trace)))
    if not ranks:
        raise NotATrace("it contains no kernel, copy or operator")
    ranks, again = _one_run(ranks)
    warnings += again
    matched, problems = match([rank.trace for rank in ranks])
    return Ranks(ranks, matched, clocks(matched, len(ranks)), warnings + problems, pipeline, cluster)


def _one_run(ranks: list[Rank]) -> tuple[list[Rank], list[str]]:
    """The ranks of the run; of a recorder that began again its last windows, with a line about those before.

    Raises UserError, with the files that belong together, where the traces are of several runs.
    """
    runs: list[list[Rank]] = []
    for rank in sorted(ranks, key=lambda rank: rank.activity.start):
        joined = next((run for run in reversed(runs) if all(_beside(rank, other) for other in run)), None)
        runs.append([rank]) if joined is None else joined.append(rank)
    if len({tuple(sorted(STAMP.sub("", str(rank.trace.path)) for rank in run)) for run in runs}) == 1:
        kept = [rank for rank in ranks if any(rank is other for other in runs[-1])]
        left = counted(len(ranks) - len(kept), "traces")
        return kept, [f"{left} of earlier windows of the same ranks: left out"] * (len(runs) > 1)
    if len(runs) == 1:
        return ranks, []
    how = "give the files of one run at a time; `diagnose FILES --against OTHER` compares two"
    more = [f"{len(runs) - MOST} more"] * (len(runs) > MOST)
    raise UserError(f"these traces are of {len(runs)} runs", "; ".join([*map(_files, runs[:MOST]), *more]), how)


def _beside(one: Rank, other: Rank) -> bool:
    """Whether two traces may be of one run: other ranks of one world, at the same time."""
    known = [rank.trace.distributed for rank in (one, other)]
    sizes, numbers = ([about.get(key) for about in known] for key in ("world_size", "rank"))
    if None not in sizes and (sizes[0] != sizes[1] or (None not in numbers and numbers[0] == numbers[1])):
        return False
    late = max(one.activity.start, other.activity.start) - min(one.activity.end, other.activity.end)
    apart = late > (HOUR if None not in sizes else max(one.breakdown.window, other.breakdown.window))
    dated = min(one.activity.start, other.activity.start) >= DATES
    return not (apart and dated) or one.trace.path == other.trace.path


def _files(run: Sequence[Rank]) -> str:
    """`a.json, b.json and 3 more (5 of 8 ranks, 2026-09-23 03:15:00 UTC)`."""
    names, begin = [rank.trace.path.name for rank in run], run[0].activity.start
    date = datetime.fromtimestamp(begin // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    size = run[0].trace.distributed.get("world_size")
    about = [f"{len(run)} of {size} ranks"] * bool(size) + [date] * (begin >= DATES)
    more = f" and {len(run) - 2} more" if len(run) > 2 else ""
    return f"{', '.join(names[:2])}{more}" + (f" ({', '.join(about)})" if about else "")


def _last_steps(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Of our own traces (step-00000005-rank00000.json.gz) each rank's last; how many that leaves out."""
    numbered = {path: match for path in paths if (match := OURS.search(path.name))}
    last = max((int(match[1]) for match in numbered.values()), default=0)
    kept = [path for path in paths if path not in numbered or int(numbered[path][1]) == last]
    return kept, len(paths) - len(kept)


def _read(path: Path) -> list[Trace] | str:
    """The traces of a file, or why it has none."""
    try:
        sqlite = beginning(path, len(MAGIC)).startswith(MAGIC)
        return read_nsys(path) if sqlite else [name_groups(read_kineto(path))]
    except NotATrace as error:
        return f"{path.name}: {error}"


def unlaunched(trace: Trace) -> int:
    """GPU activity without a launch in the trace: its idle time has no cause that could be told."""
    if not (trace.category == CALL).any():
        return 0
    return int(np.count_nonzero(trace.on_gpu & (trace.launches < 0)))
