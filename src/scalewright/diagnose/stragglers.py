"""Which ranks the others waited for, for how long, and what kept those ranks.

    rank 0 (late)    ██ compute ██░░░░░░░ host ░░░░░░░░│████    from one collective's start to the next's:
    the median       ██ compute ██│▒▒▒▒▒▒▒ waits ▒▒▒▒▒▒ ████    the longer part is the cause

    late              = its wait is under a tenth of the longest: the last one, and who came with it
    imposed by a rank = sum over the collectives to which it came late of the median of the others' waits
    cause             = the part (compute, copies, an idle cause) of those stretches that exceeds the ranks'
                        median by most

A rank is named when it imposed at least `LEAST_SHARE` of the window, and `LEAST_EXCESS` times what the ranks do on
average: where all come late in turn, none is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import Activity
from scalewright.diagnose.collectives import Matched
from scalewright.diagnose.idle import CAUSES, Idle

LEAST_SHARE = 0.02  # of the window
LEAST_EXCESS = 1.5  # times what a rank imposes on average
LATE = 0.1  # of the longest wait
PARTS = ("compute", "communication", "copies", *CAUSES)


@dataclass(frozen=True)
class Straggler:
    """A rank (its place in the list of traces) that others waited for; times in nanoseconds.

    `last_in`, `of`: collectives to which it came late, of all it took part in. `imposed`: a typical other
    rank's waiting for it. `excess`: what it did longer than the median rank before those, by part.
    """

    rank: int
    last_in: int
    of: int
    imposed: int
    excess: dict[str, int]

    @property
    def cause(self) -> str:
        """The part with the largest excess."""
        return max(self.excess, key=lambda part: self.excess[part])


def stragglers(
    matched: Sequence[Matched], activities: Sequence[Activity], idles: Sequence[Idle], window: int
) -> list[Straggler]:
    """Late ranks, the worst first; `window`: nanoseconds of the trace, for the least that is named."""
    result = []
    imposed, last_in, took_part = (np.zeros(len(activities), dtype=np.int64) for _ in range(3))
    excess = np.zeros((len(activities), len(PARTS)), dtype=np.int64)
    for group in matched:
        parts = _before_each(group, activities, idles)
        beyond = parts - np.median(parts, axis=1, keepdims=True).astype(np.int64)
        late = group.wait <= LATE * group.wait.max(axis=1, keepdims=True)
        imposed[group.ranks] += (late * _wait_of_others(group, late)[:, None]).sum(axis=0)
        last_in[group.ranks] += late.sum(axis=0)
        excess[group.ranks] += (late[:, :, None] * beyond).sum(axis=0)
        took_part[group.ranks] += len(group)
    least = max(LEAST_SHARE * window, LEAST_EXCESS * imposed.mean(), 1)
    for rank in np.argsort(-imposed, kind="stable").tolist():
        if imposed[rank] >= least:
            why = dict(zip(PARTS, excess[rank].tolist(), strict=True))
            result.append(Straggler(rank, int(last_in[rank]), int(took_part[rank]), int(imposed[rank]), why))
    return result


def _wait_of_others(group: Matched, late: np.ndarray) -> np.ndarray:
    """For each collective the median wait of the ranks that weren't late; 0 where all were."""
    ordered = np.sort(np.where(late, np.iinfo(np.int64).max, group.wait), axis=1)
    others = (~late).sum(axis=1)
    middle = ordered[np.arange(len(ordered)), np.maximum(others - 1, 0) // 2]  # the lower of two in the middle
    return np.where(others > 0, middle, 0)


def _before_each(group: Matched, activities: Sequence[Activity], idles: Sequence[Idle]) -> np.ndarray:
    """Nanoseconds of what each rank did since the start of the collective before; int64 [.., ranks, PARTS].

    Not since its end: ranks that hide it behind their computation have computed by then.
    """
    parts = np.zeros((len(group), len(group.ranks), len(PARTS)), dtype=np.int64)
    for column, index in enumerate(group.ranks):
        what, idle = activities[index], idles[index]
        end = group.start[:, column]
        start = np.minimum(np.concatenate(([what.start], end[:-1])), end)
        for number, some in enumerate((what.compute, what.exposed_communication, what.exposed_copies)):
            parts[:, column, number] = intervals.length_within(some, start, end)
        place = intervals.place(start, end, idle.gaps[:, 0])
        for number, cause in enumerate(CAUSES, 3):
            np.add.at(parts[:, column, number], place[place >= 0], idle.by_cause[cause][place >= 0])
    return parts
