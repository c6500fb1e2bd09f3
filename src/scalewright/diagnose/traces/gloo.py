"""Process groups of Gloo's collectives, which the profiler doesn't record, from torch's flight recorder.

    trace       gloo:all_reduce ▒▒▒▒▒▒▒▒        begins when a thread of Gloo's takes it, ends when it is done
    recorder    [created, "gloo:all_reduce", group, about the group, number in it,          before that begins
                 elements of the input, of the output, dtype]

`collectives` of a trace that `train` or `record` wrote has the recorder's entries, `axes` the axis of each group. Of
one kind, the k-th event is the k-th entry but for those from before the trace: the entries are shifted to the latest
place at which each is created before its event begins.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Collective, Trace

T = TypeVar("T")
PREFIX = "gloo:"
CALLS = "c10d::"  # operators that hand a collective over, and return at once
WAITS = "_c10d_functional::wait_tensor"
SEND, RECEIVE = "gloo:send", "gloo:recv"
SLACK = 1_000_000  # ns by which the recorder's clock may be ahead of the trace's
Elements = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 60)]


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One collective, as the recorder has it; `created` in nanoseconds since 1970."""

    created: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    kind: str
    group: str
    about: str = ""
    number: int = 0
    elements_in: Elements = -1
    elements_out: Elements = -1
    dtype: str = ""


class GroupEntry(msgspec.Struct, frozen=True):
    """A process group, as torch's profiler writes it."""

    pg_name: str = ""
    ranks: list[int] = []


def gloo_rows(trace: Trace) -> np.ndarray:
    """Rows of Gloo's collectives and messages; bool, one a row."""
    return np.asarray(trace.starting((PREFIX,)) & (trace.category == ANNOTATION))


def waited_for(trace: Trace) -> np.ndarray:
    """Those that a rank waits for, all but sends, whose events last until somebody looks; bool, one a row."""
    return np.asarray(gloo_rows(trace) & ~trace.starting((SEND,)))


def encloses_call(trace: Trace) -> np.ndarray:
    """Operators within which a collective is started or waited for: what they do is in others of their own.

    bool, one a row; `torch::autograd::AccumulateGrad` whose hook sums a gradient over ranks is one.
    """
    operators = trace.category == OPERATOR
    calls = operators & trace.starting((CALLS, WAITS))
    result = np.zeros(len(trace), dtype=bool)
    for lane in np.unique(trace.lane[calls]).tolist():
        begun = np.sort(trace.start[calls & (trace.lane == lane)])
        rows = np.flatnonzero(operators & ~calls & (trace.lane == lane))
        result[rows] = np.searchsorted(begun, trace.end[rows]) > np.searchsorted(begun, trace.start[rows])
    return result


def name_groups(trace: Trace) -> Trace:
    """The trace, with the group of each of Gloo's collectives that an entry was found for."""
    axes = trace.about.get("axes")
    axes = axes if isinstance(axes, dict) else {}
    members = {group.pg_name: group.ranks for group in _list_of(trace.distributed.get("pg_config"), GroupEntry)}
    for row, known in [*trace.collectives.items()]:
        trace.collectives[row] = replace(known, group_about=str(axes.get(known.group, known.group_about)))
    entries = sorted(_list_of(trace.about.get("collectives"), Entry), key=lambda entry: entry.created)
    rows = trace.in_order(np.flatnonzero(gloo_rows(trace)))
    for kind in sorted({entry.kind for entry in entries} - {SEND, RECEIVE}):
        alike = rows[[trace.names[number] == kind for number in trace.name[rows].tolist()]]
        for row, entry in _paired(trace, alike, [entry for entry in entries if entry.kind == kind]):
            ranks = members.get(entry.group, [])
            trace.collectives[row] = Collective(
                kind, entry.dtype, entry.elements_in, entry.elements_out, group=entry.group, ranks=str(ranks),
                group_about=str(axes.get(entry.group, entry.about)), group_size=len(ranks),
            )  # fmt: skip
    return trace


def _paired(trace: Trace, rows: np.ndarray, entries: list[Entry]) -> list[tuple[int, Entry]]:
    """Rows and entries of one kind, both in order; rows without an entry are left out."""
    if not len(rows):
        return []
    created = np.array([entry.created for entry in entries])
    latest = np.searchsorted(created, trace.start[rows] + SLACK, side="right") - 1
    shift = int((latest - np.arange(len(rows))).min())
    return [(row, entries[k + shift]) for k, row in enumerate(rows.tolist()) if k + shift >= 0]


def _list_of(value: Any, kind: type[T]) -> list[T]:
    """The items of a list of JSON that are of this kind."""
    items = []
    for item in value if isinstance(value, list) else []:
        with suppress(msgspec.ValidationError, OverflowError):
            items.append(msgspec.convert(item, kind))
    return items
