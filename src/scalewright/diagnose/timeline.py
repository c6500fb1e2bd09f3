"""What each rank did when: its window cut into parts, for a picture or a trace viewer.

    device           ██ compute ██▒▒ transfer ▒▒░░ waiting ░░██··host··██     each moment has one part
    communication        ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░░░░                 beside compute, too

Times are nanoseconds from the window's begin, by clocks that are aligned (collectives.py). Waiting is known
where collectives are matched over ranks; an idle gap has the cause that explains most of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.ranks import Rank, Ranks

PARTS = ("compute", "transfer", "waiting", "memcpy", *CAUSES)
COMPUTE, TRANSFER, WAITING, COPY, IDLE = range(5)  # idle causes follow in their order


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
    offset = ranks.clocks.offset.tolist()
    begin = min(rank.activity.start - ahead for rank, ahead in zip(ranks.ranks, offset, strict=True))
    lanes = [_rank(rank, ranks.waits(place), begin + offset[place]) for place, rank in enumerate(ranks.ranks)]
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
    return RankLanes(
        trace.path.name if trace.rank is None else f"rank {trace.rank}",
        _lane(device, begin),
        _lane(sent, begin),
        [(number, start - begin, end - begin) for number, start, end in numbers if end > start],
    )


def _lane(parts: list[tuple[int, np.ndarray]], begin: int) -> Lane:
    """Boxes of all parts, ordered in time."""
    part = np.concatenate([np.full(len(spans), number) for number, spans in parts])
    spans = np.concatenate([spans for _, spans in parts])
    order = np.argsort(spans[:, 0], kind="stable")
    return Lane(part[order], spans[order, 0] - begin, spans[order, 1] - begin)
