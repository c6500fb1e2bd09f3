"""What each rank did when: its window cut into parts, for a picture or a trace viewer.

    device           ██ compute ██▒▒ transfer ▒▒░░ waiting ░░██··host··██     each moment has one part
    communication        ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░░░░                 beside compute, too

Times are nanoseconds from the window's begin, by clocks that are aligned (collectives.py). Waiting is known where
collectives are matched over ranks; an idle gap has the cause that explains most of it.

A timeline as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: measured, and planned beside it.

    process            thread          slices
    rank 0             steps           step 5, step 6            of the device
                       device          compute, transfer, waiting, memcpy, idle: host, ...
                       communication   transfer, waiting         beside compute, too
    planned            the same        the plan's parts of a step, one after the other, for each measured step

A plan doesn't order its parts, so that their order within a step means nothing; their lengths do. Chrome's
"Trace Event Format": complete events ("X") in microseconds, names by metadata ("M").
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.compare.compare import SAME
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.ranks import Rank, Ranks

PARTS = ("compute", "transfer", "waiting", "memcpy", *CAUSES)
COMPUTE, TRANSFER, WAITING, COPY, IDLE = range(5)  # idle causes follow in their order
STEPS, DEVICE, COMMUNICATION = 1, 2, 3  # threads
THREADS = {STEPS: "steps", DEVICE: "device", COMMUNICATION: "communication"}
HEAD = '{"displayTimeUnit": "ms", "otherData": {"written by": "Scalewright"}, "traceEvents": [\n'
# Part of a comparison with a plan -> what it is called on the device's track.
PLANNED = {"compute": "compute", "exposed_communication": "transfer", "idle and memcpy": "idle: planned"}


@dataclass(frozen=True)
class Lane:
    """Boxes one after the other: their part (a place in PARTS), start and end; arrays [n], int64 ns."""

    part: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class RankLanes:
    """One rank's name, its lanes, and its steps as (number, start, end)."""

    name: str
    device: Lane
    communication: Lane
    steps: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Timeline:
    """All ranks over one window, nanoseconds."""

    window: int
    ranks: list[RankLanes]


def timeline(ranks: Ranks) -> Timeline:
    """The lanes of every rank, in the order of the traces."""
    begin = (ranks.begin + ranks.clocks.offset).tolist()
    lanes = [_rank(rank, ranks.waits(place), begin[place]) for place, rank in enumerate(ranks.ranks)]
    return Timeline(ranks.window, lanes)


def _rank(rank: Rank, waits: np.ndarray, begin: int) -> RankLanes:
    what, gaps = rank.activity, rank.idle.gaps
    exposed = what.exposed_communication
    shares = np.stack([rank.idle.by_cause[cause] for cause in CAUSES]) if len(gaps) else np.zeros((1, 0))
    device = [
        (COMPUTE, what.compute), (TRANSFER, intervals.minus(exposed, waits)),
        (WAITING, intervals.overlap(exposed, waits)), (COPY, what.exposed_copies),
        *((IDLE + cause, gaps[shares.argmax(axis=0) == cause]) for cause in range(len(CAUSES))),
    ]  # fmt: skip
    sent = [
        (TRANSFER, intervals.minus(what.communication, waits)),
        (WAITING, intervals.overlap(what.communication, waits)),
    ]
    trace, steps = rank.trace, rank.steps
    numbers = zip(steps.number.tolist(), steps.start.tolist(), steps.end.tolist(), strict=True)
    name = trace.path.name if trace.rank is None else f"rank {trace.rank}"
    stepped = [(number, start - begin, end - begin) for number, start, end in numbers if end > start]
    return RankLanes(name, _lane(device, begin), _lane(sent, begin), stepped)


def _lane(parts: list[tuple[int, np.ndarray]], begin: int) -> Lane:
    """Boxes of all parts, ordered in time."""
    part = np.concatenate([np.full(len(spans), number) for number, spans in parts])
    spans = np.concatenate([spans for _, spans in parts])
    order = np.argsort(spans[:, 0], kind="stable")
    return Lane(part[order], spans[order, 0] - begin, spans[order, 1] - begin)


def write_perfetto(timeline: Timeline, path: Path, plan: Mapping[str, Any] | None = None) -> None:
    """Writes the trace, gzipped where the name ends in .gz; `plan`: one that `predict --json` printed.

    Raises OSError as `open` does.
    """
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        for number, event in enumerate(_events(timeline, plan)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def is_ours(path: Path) -> bool:
    """Whether `write_perfetto` wrote this file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return bytes(file.read(len(HEAD))) == HEAD.encode()
    except (OSError, EOFError, zlib.error):
        return False


def _events(timeline: Timeline, plan: Mapping[str, Any] | None) -> Iterator[dict[str, object]]:
    for place, rank in enumerate(timeline.ranks):
        yield from _names(place, rank.name)
        for number, start, end in rank.steps:
            yield _slice(place, STEPS, f"step {number}", start, end)
        yield from _slices(place, DEVICE, rank.device)
        yield from _slices(place, COMMUNICATION, rank.communication)
    if plan is not None:
        yield from _planned(len(timeline.ranks), timeline.ranks[0], plan)


def _names(process: int, name: str) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for thread, name_of_thread in THREADS.items():
        args = {"name": name_of_thread}
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": args}


def _slices(process: int, thread: int, lane: Lane) -> Iterator[dict[str, object]]:
    for part, start, end in zip(lane.part.tolist(), lane.start.tolist(), lane.end.tolist(), strict=True):
        yield _slice(process, thread, PARTS[part] if part < IDLE else f"idle: {PARTS[part]}", start, end)


def _slice(process: int, thread: int, name: str, start: float, end: float) -> dict[str, object]:
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": start / 1e3, "dur": (end - start) / 1e3}


def _planned(process: int, rank: RankLanes, plan: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """The plan's step from where each measured one begins; once from the window's begin without steps."""
    yield from _names(process, "planned")
    length = 1e9 * float(plan["step_time_s"]["p50"])
    for number, begin, _ in rank.steps or [(0, 0, 0)]:
        yield _slice(process, STEPS, f"step {number}", begin, begin + length)
        start = float(begin)
        for part, keys in SAME.items():
            took = 1e9 * sum(plan["time_breakdown_s"].get(key, 0.0) for key in keys)
            if took > 0:
                yield _slice(process, DEVICE, PLANNED[part], start, start + took)
            if took > 0 and PLANNED[part] == "transfer":
                yield _slice(process, COMMUNICATION, "transfer", start, start + took)
            start += took
