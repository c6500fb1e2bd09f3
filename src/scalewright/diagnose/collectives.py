"""The same collective found on every rank, and its time split into transfer and waiting for the last rank.

    rank 0   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒████      ▒ waits inside the kernel     █ transfer: the shortest rank's duration
    rank 1            ▒▒▒▒▒▒▒████      a rank that comes late waits least; all end together
    rank 2                   ████  ◄── the last: the others waited for it

    transfer = min over ranks of the duration       wait of a rank = its duration - transfer
    clock of a rank = median over collectives of its end - the ranks' median end       (all end together)

A pipeline's sends are matched with the receives of the same group, sender and receiver, in their order. Collectives are
matched by process group and order in it; where the profiler recorded no groups, by the stream's rank among the rank's
communication streams and order in it, with names that must agree. A rank's k-th one is every rank's k-th, as ranks that
don't agree on that hang. Waits smaller than twice the spread of the clocks' ends aren't told from noise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.traces.gloo import gloo_rows
from scalewright.diagnose.traces.kinds import communicates
from scalewright.diagnose.traces.trace import KERNEL, Trace

ALGORITHM = re.compile(r"_(?:RING|TREE|NVLS|COLLNET|PAT)\w*|_(?:LL128|LL|SIMPLE)\b", re.I)


@dataclass(frozen=True)
class Matched:
    """Collectives of one group; arrays are [collectives, ranks], times int64 nanoseconds.

    `ranks`: indices into the list of traces that was given. `row`: rows of their kernels. `message`: whether
    they are sends, each with its receive.
    """

    group: str
    names: list[str]
    ranks: list[int]
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    message: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def transfer(self) -> np.ndarray:
        """Of each collective: what the last rank to come needed, int64 [collectives]."""
        return np.asarray((self.end - self.start).min(axis=1))

    @property
    def wait(self) -> np.ndarray:
        """What each rank spent inside the kernel before the last one came."""
        return np.asarray(self.end - self.start - self.transfer[:, None])


@dataclass(frozen=True)
class Clocks:
    """Nanoseconds by which each rank's clock is ahead of the median's, and how uncertain that is."""

    offset: np.ndarray  # int64 [traces]
    error: np.ndarray  # int64 [traces]: median absolute deviation of the ends, nanoseconds


def match(traces: Sequence[Trace]) -> tuple[list[Matched], list[str]]:
    """The collectives that all ranks of a group ran, and a line for each group that doesn't match."""
    by_group: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for index, trace in enumerate(traces):
        for group, kernels in _by_group(trace).items():
            by_group[group][index] = kernels
    matched, problems = [], []
    for group, rows in by_group.items():
        if len(rows) < 2:
            continue
        names, *others = (_names(traces[index], kernels) for index, kernels in rows.items())
        if any(other != names for other in others):
            counts = sorted({len(of_rank) for of_rank in rows.values()})
            how = f"{counts[0]} to {counts[-1]} of them" if len(counts) > 1 else "names differ"
            problems.append(f"the collectives of {group} differ between ranks ({how}): not compared")
            continue
        table = np.stack([*rows.values()], axis=1)
        start = np.stack([traces[index].start[kernels] for index, kernels in rows.items()], axis=1)
        end = np.stack([traces[index].end[kernels] for index, kernels in rows.items()], axis=1)
        message = bool(_ends(traces[next(iter(rows))], int(table[0, 0])))
        matched.append(Matched(group, names, [*rows], table, start, end, message))
    return matched, problems


def clocks(matched: Sequence[Matched], count: int) -> Clocks:
    """The clocks of `count` traces, from the ends of what they did together; 0 for those without any."""
    offset, error = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    behind: list[list[np.ndarray]] = [[] for _ in range(count)]
    for group in matched:
        ahead = group.end - np.median(group.end, axis=1).astype(np.int64)[:, None]
        for column, index in enumerate(group.ranks):
            behind[index].append(ahead[:, column])
    for index, parts in enumerate(behind):
        if parts:
            values = np.concatenate(parts)
            offset[index] = np.median(values)
            error[index] = np.median(np.abs(values - offset[index]))
    return Clocks(offset, error)


def _by_group(trace: Trace) -> dict[str, np.ndarray]:
    """Rows of a rank's communication kernels in order, by process group or else by stream."""
    rows = np.flatnonzero(communicates(trace.names)[trace.name] & (trace.category == KERNEL))
    if not trace.on_gpu.any():  # Gloo's, where the group is known
        rows = np.array([row for row in np.flatnonzero(gloo_rows(trace)) if row in trace.collectives], int)
    groups: dict[str, list[int]] = defaultdict(list)
    streams: dict[int, str] = {}
    for row in trace.in_order(rows).tolist():
        groups[group_of(trace, row, streams)].append(row)
    return {group: np.array(kernels) for group, kernels in groups.items()}


def group_of(trace: Trace, row: int, streams: dict[int, str]) -> str:
    """The name of a kernel's process group, of a message with its ends; else that of its stream, kept in `streams`."""
    known = trace.collectives.get(row)
    if known is not None and known.group:
        about = f" {known.group_about}" if known.group_about not in ("", "undefined") else ""
        return f"group {known.group}{about} {known.ranks}".strip() + _ends(trace, row)
    return streams.setdefault(int(trace.lane[row]), f"communication stream {len(streams)}")


def _ends(trace: Trace, row: int) -> str:
    """Of a message between two ranks its sender and receiver; empty for other collectives."""
    known = trace.collectives.get(row)
    if known is None or trace.rank is None or known.source == known.target:
        return ""
    if known.name == "send":
        return f" {trace.rank} to {known.target}"
    return f" {known.source} to {trace.rank}" if known.name == "recv" else ""


def _names(trace: Trace, rows: np.ndarray) -> list[str]:
    """Names of kernels without algorithm and protocol, which a rank may choose by itself."""
    return [ALGORITHM.sub("", trace.names[number].split("(", 1)[0]) for number in trace.name[rows].tolist()]


def numbers(lengths: Sequence[int], matched: Sequence[Matched]) -> list[np.ndarray]:
    """For each trace (of so many rows) the number of the collective of every row, -1 for other rows."""
    result = [np.full(length, -1, dtype=np.int64) for length in lengths]
    offset = 0
    for group in matched:
        for column, index in enumerate(group.ranks):
            result[index][group.row[:, column]] = np.arange(offset, offset + len(group))
        offset += len(group)
    return result
