"""Every kind of schedule as one record. A new one: an order in one_f_one_b.py or fold.py, and a record here.

    order    what a rank does, in order                              one_f_one_b.py, fold.py
    seats    ranks of the stages: round the ranks, a V, both ways    stage_ranks
    stages   virtual stages that it takes: one, several, two
    whole    the kind with whole backwards; null: this one's are
    sibling  the same with several stages a rank, or with one
    idle     seconds that a rank waits in a step                     sources and conditions: bubble.py
    alive    micro-batches whose activations a rank holds, in whole ranks' worth

Formulas are over columns: p ranks, v virtual stages, m micro-batches; f, i, w seconds of one stage's forward,
input part and weight part. `alive` (bubble.py counts it by action):

    gpipe            m                                       Huang et al. 2019 §2.3
    1f1b, pipedream  min(m, p - r)                           Narayanan et al. 2021a §3
    interleaved      min(m v, 2 (p-1-r) + (v-1) p + 1) / v   Narayanan et al. 2021b §2.2.2
    zb-h1            min(m, p)                               Qi et al. 2023 §3.2: as 1F1B's first rank
    zb-interleaved   min(m, p)                               ours, by the count
    zbv              min(m, p)                               Qi et al. 2023 §6
    dualpipev        min(m, p + 1/2)                         DualPipe's README, cut in half
    dualpipe         min(m, p + 1)                           DeepSeek-AI, DualPipe's README
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalewright.spec.errors import unknown
from scalewright.spec.schedules import fold
from scalewright.spec.schedules.action import Action
from scalewright.spec.schedules.one_f_one_b import gpipe, interleaved, one_forward_one_backward, zero_bubble

Order = Callable[[int, int, int, int], list[Action]]  # (rank, ranks, virtual stages, micro-batches)
Column = Any  # a number, or an array of them
Idle = Callable[[Column, Column, Column, Column, Column, Column], Column]  # (p, v, m, f, i, w)
Alive = Callable[[Column, Column, Column, Column], Column]  # (p, v, m, rank)


@dataclass(frozen=True)
class Kind:
    """A kind of schedule, as planner, trainer, checks and report use it."""

    name: str
    order: Order
    seats: Literal["round", "v", "both"]
    stages: Literal["one", "several", "two"]
    idle: Idle
    alive: Alive
    whole: str | None = None
    sibling: str | None = None
    split_all: bool = False  # every backward, not only some
    paired: bool = False  # forwards and backwards meet: it needs 2 p micro-batches, and pairs may overlap
    trained: bool = True  # the trainer runs it; else it is only planned
    flushes: bool = True  # a step ends with an empty pipeline

    @property
    def splits(self) -> bool:
        """Whether backwards run in two parts."""
        return self.whole is not None

    @property
    def folded(self) -> bool:
        """Whether the first rank holds both ends of the model."""
        return self.seats != "round"

    @property
    def both_ways(self) -> bool:
        """Whether every stage exists twice, once for each way."""
        return self.seats == "both"

    @property
    def chunked(self) -> bool:
        """Whether a rank holds several stages."""
        return self.stages != "one"

    @property
    def complexity(self) -> int:
        """0 plain, 1 with several stages a rank, 2 with a split backward or both ways."""
        return 2 if self.splits or self.both_ways else int(self.chunked)

    def parts(self, ranks: int, virtual_stages: int) -> int:
        """Parts that the model is cut into."""
        return ranks if self.both_ways else ranks * virtual_stages


def _fill(p: Column, v: Column, m: Column, f: Column, i: Column, w: Column) -> Column:
    return (p - 1) * (f + i + w)


def _fill_chunks(p: Column, v: Column, m: Column, f: Column, i: Column, w: Column) -> Column:
    """With fewer micro-batches than ranks a rank waits for its own chunks too."""
    return (p - 1 + (v - 1) * np.maximum(0, p - m)) * (f + i + w)


def _hidden(f: Column, i: Column, w: Column) -> Column:
    """Seconds of a weight part that fill a wait: at most those of the part beside it."""
    return np.minimum(w, np.minimum(f, i))


def _zb_h1(p: Column, v: Column, m: Column, f: Column, i: Column, w: Column) -> Column:
    return (p - 1) * (f + i) - (np.minimum(m, p) - 1) * _hidden(f, i, w)


def _zb_chunks(p: Column, v: Column, m: Column, f: Column, i: Column, w: Column) -> Column:
    late = np.maximum(0, p - m) * (f + i) + np.maximum(0, p - 2 * m) * _hidden(f, i, w)
    return (p - 1) * (f + i - _hidden(f, i, w)) + (v - 1) * late


def _zbv(p: Column, v: Column, m: Column, f: Column, i: Column, w: Column) -> Column:
    """Published for F = I = W; else ours, found by the clock: longer weight parts add the last term."""
    filled = np.where(i >= f, (p - 1) * np.maximum(i, 2 * (i - w)), (p - 1) * f + (p - 2) * (f - i))
    filled = filled + (p - 2) * np.maximum(0, w - np.maximum(i, 2 * f - i))
    return np.maximum(filled, 2 * (p - 1) * (f + i) - 2 * (m - 1) * np.minimum(f, i))


def _pairs(depth: Column, f: Column, i: Column, w: Column) -> Column:
    """Ours, by the clock: longer input parts than forwards add the last term."""
    return (depth - 1) * (f + i - np.minimum(w, i)) + np.maximum(0, (depth - 1) * (i - f) - f)


def _loop_alive(p: Column, v: Column, m: Column, rank: Column) -> Column:
    """Interleaved 1F1B; with one chunk, 1F1B (measured runs may set chunks without the kind)."""
    chunks = np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) / v
    return np.where(v > 1, chunks, np.minimum(m, p - rank))


def _all_ranks_alike(p: Column, v: Column, m: Column, rank: Column) -> Column:
    return np.minimum(m, p)


_RECORDS = (
    Kind("gpipe", gpipe, "round", "one", _fill, lambda p, v, m, rank: m),
    Kind("1f1b", one_forward_one_backward, "round", "one", _fill, _loop_alive, sibling="interleaved"),
    Kind("interleaved", interleaved, "round", "several", _fill_chunks, _loop_alive, sibling="1f1b"),
    Kind(
        "zb-h1", zero_bubble, "round", "one", _zb_h1, _all_ranks_alike, whole="1f1b", sibling="zb-interleaved",
        split_all=True,
    ),
    Kind(
        "zb-interleaved", zero_bubble, "round", "several", _zb_chunks, _all_ranks_alike,
        whole="interleaved", sibling="zb-h1", split_all=True,
    ),
    Kind("zbv", fold.zbv, "v", "two", _zbv, _all_ranks_alike, whole="interleaved", split_all=True),
    Kind(
        "dualpipev", fold.dualpipev, "v", "two", lambda p, v, m, f, i, w: _pairs(p, f, i, w),
        lambda p, v, m, rank: np.minimum(m, p + 0.5), whole="1f1b", paired=True,
    ),
    Kind(
        "pipedream", one_forward_one_backward, "round", "one",
        lambda p, v, m, f, i, w: 0.0 * (p + f),  # it fills once, not once a step
        lambda p, v, m, rank: np.minimum(m, p - rank), trained=False, flushes=False,
    ),
    Kind(
        "dualpipe", fold.dualpipe, "both", "two", lambda p, v, m, f, i, w: _pairs(p / 2, f, i, w),
        lambda p, v, m, rank: np.minimum(m, p + 1), paired=True, trained=False,
    ),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _RECORDS}


def find_kind(name: str) -> Kind:
    """A kind by its name; raises UserError for an unknown one."""
    if name not in KINDS:
        raise unknown("schedule", name, tuple(KINDS))
    return KINDS[name]


def stage_ranks(kind: str, ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank that holds each stage, for a kind of schedule; raises UserError for an unknown kind."""
    if find_kind(kind).folded:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(stage % ranks for stage in range(ranks * virtual_stages))
