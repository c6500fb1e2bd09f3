"""Prices rows of a space: its units once, then time, memory and score of 100 000s of rows.

rows --table--> columns --step, memory--> seconds, bytes --objective--> score; fits, on device and host
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2

import numpy as np

from scalewright.plan.chips import constants_of
from scalewright.plan.columnar import Columnar
from scalewright.plan.constants import Constants
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.facts import Facts, unit_facts
from scalewright.plan.cost.kernels import Prices, flatten, price
from scalewright.plan.cost.memory import KINDS, Memory, first_rank, host_bytes, least_host_bytes, memory, memory_band
from scalewright.plan.cost.price_list import price_list
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.timeline import Inner, Step, inner, outer, states_seconds
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.search.objective import Objective
from scalewright.plan.search.space import Rows, Space

# Rows with their pipes, bounds on their scores without states, and seconds of their slowest micro-batch
Pipes = tuple[Rows, np.ndarray, np.ndarray]
BATCH = 8192  # rows that are priced at once, so that their columns fit the CPU's cache
# By lower bounds on rows' scores and bytes
Hopeful = Callable[[Rows, np.ndarray, np.ndarray], np.ndarray]


def batches(rows: Rows) -> Iterator[Rows]:
    """The rows, a batch at a time."""
    for start in range(0, len(rows), BATCH):
        yield rows.take(slice(start, start + BATCH))


@dataclass
class Priced(Columnar):
    """Rows with their score, time and memory."""

    rows: Rows
    score: np.ndarray
    seconds: np.ndarray
    peak: np.ndarray  # bytes
    fits: np.ndarray
    over: np.ndarray  # bytes beyond the device's usable memory; negative where it fits

    @staticmethod
    def none() -> Priced:
        """No rows."""
        zeros = np.zeros(0)
        return Priced(Space.bare(zeros), zeros, zeros, zeros, zeros > 0, zeros)


@dataclass
class Pricer:
    """Prices rows of a space from the prices of its units."""

    space: Space
    objective: Objective
    headroom: float | None  # None: a layout must fit up to the p90 of its memory
    c: Constants
    facts: Facts
    priced: int = 0
    # Numbers of pipes with their recomputation, rising, and what `inside` knows of them
    _known: tuple[np.ndarray, Inner] | None = None

    @cached_property
    def prices(self) -> Prices:
        """Seconds of the units' kernels; memory asks for none."""
        return price(flatten(self.space.units, self.facts), self.c)

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lower bound on the score of every layout of each core."""
        space, bounds = self.space, []
        fewest = {pp: space.pipe["stages"][i : i + n].min(0) for pp, (i, n) in space.pipes.items()}
        depths, inverse = np.unique(space.core["pp"], return_inverse=True)
        stages = np.array([fewest[int(pp)] for pp in depths])[inverse]
        for rows in batches(space.bare(np.arange(space.cores))):
            table = space.table(rows)
            table.stages, table.virtual_stages = stages[rows.core], np.ones(len(rows))
            set_no_extras(table)
            scores = []
            for kind in ("1f1b", "dualpipe"):  # embedding and head on a rank each, or half of both on each
                table.schedule = np.full(len(rows), SCHEDULES.index(kind))
                scores.append(self.bound(inner(self.columns(table), piped=False)))
            bounds.append(np.minimum(*scores))
        return np.concatenate(bounds)

    def bound(self, inside: Inner) -> np.ndarray:
        """The score of micro-batches and pipelines and of their stragglers."""
        request = self.space.template
        nodes = max(request.devices / max(request.chip.node, 1), 1.0)
        late = self.c["wait.straggler"] * log2(nodes) * sum(inside.parts.values())
        return np.asarray(self.objective.score(inside.parts) + self.objective.weights["other"] * late)

    def bound_pipes(self, rows: Rows, cutoff: float) -> Pipes:
        """Pairs of core and pipe with their bounds: those up to the cutoff."""
        bounds, slow = [np.zeros(0)], [np.zeros(0)]
        for part in batches(rows):
            table = self.space.table(part)
            set_no_extras(table)
            inside = inner(self.columns(table))
            bounds.append(self.bound(inside))
            slow.append(inside.slow)
        bound = np.concatenate(bounds)
        near = bound <= cutoff
        return rows.take(near), bound[near], np.concatenate(slow)[near]

    def states_bound(self, rows: Rows, slow: np.ndarray) -> np.ndarray:
        """Lower bound on the score of the optimizer's step and the host's traffic: states shared by most ranks."""
        rows = replace(rows, shard=self.space.most_sharded[rows.core])
        at = self.columns(self.space.table(rows))
        return np.asarray(self.objective.weights["optimizer"] * states_seconds(at, slow, price_list(at)))

    def bound_ways(self, rows: Rows, cutoff: float = np.inf) -> tuple[Rows, np.ndarray]:
        """Lower bounds on the score of the rows with any sharding: rows up to the cutoff."""
        parts, bounds = [rows.take(slice(0, 0))], [np.zeros(0)]
        for part in batches(rows):
            inside = self.inside(part)
            bound = self.bound(inside)
            near = np.flatnonzero(bound <= cutoff)
            part, bound = part.take(near), bound[near] + self.states_bound(part.take(near), inside.slow[near])
            parts.append(part.take(bound <= cutoff))
            bounds.append(bound[bound <= cutoff])
        return Rows.join(parts), np.concatenate(bounds)

    def over(self, usage: Memory) -> np.ndarray:
        """Bytes of the rows beyond a device's usable memory: with the headroom, or at their p90."""
        if self.headroom is None:
            return np.asarray(usage.high - usage.usable)
        return np.asarray(usage.peak - usage.usable * (1.0 - self.headroom))

    def columns(self, table: Table) -> PricedColumns:
        """A table's rows as the formulas read them."""
        return PricedColumns(table, self.facts, self.c, self.prices)

    def times(self, rows: Rows, cutoff: float = np.inf, bounded: bool = False) -> tuple[np.ndarray, Step]:
        """The rows with scores up to the cutoff, as indices, and their times; `bounded`: their least is up to it.

        Micro-batches and pipelines are priced once for all rows that differ in their sharding alone.
        """
        near, at, inside = np.arange(len(rows)), self.columns(self.space.table(rows)), self.inside(rows)
        if not bounded and cutoff < np.inf and at.own.any():  # a third of the work decides on most
            near = np.flatnonzero(self.objective.score(outer(at, inside, ends=False).parts) <= cutoff)
            at, inside = self.columns(at.table.take(near)), inside.take(near)
        times = outer(at, inside)
        kept = np.flatnonzero(self.objective.score(times.parts) <= cutoff)
        return near[kept], replace(times.take(kept), at=self.columns(at.table.take(kept)))

    def inside(self, rows: Rows) -> Inner:
        """Seconds of the rows' micro-batches and pipelines, each priced once until `forget`."""
        space, pipes = self.space, len(self.space.pipe["virtual_stages"])
        moves = space.moves[rows.offload] & space.plain[rows.recompute]  # elsewhere no offload matters
        number = ((rows.core * pipes + rows.pipe) * len(space.recomputes) + rows.recompute) * 2 + moves
        known, inside = self._known or (np.zeros(0, dtype=np.intp), None)
        asked, first = np.unique(number, return_index=True)
        new = ~np.isin(asked, known, assume_unique=True)
        if inside is None or new.any():
            fresh = inner(self.columns(self.space.table(rows.take(first[new]))))
            numbers = np.concatenate([known, asked[new]])
            order = np.argsort(numbers)
            known, inside = numbers[order], (fresh if inside is None else Inner.join([inside, fresh])).take(order)
            self._known = known, inside
        return inside.take(np.searchsorted(known, number))

    def forget(self) -> None:
        """Forgets micro-batches and pipelines that were priced, as no row of theirs comes again."""
        self._known = None

    def price(self, rows: Rows, cutoff: float = np.inf) -> Priced:
        """Time and score of rows, and the memory of those with scores up to the cutoff: the others are left out."""
        return Priced.join([Priced.none(), *(self._price(part, cutoff) for part in batches(rows))])

    def _price(self, part: Rows, cutoff: float, bounded: bool = False) -> Priced:
        """The same of a batch."""
        near, times = self.times(part, cutoff, bounded)
        usage, score = memory(times.at), self.objective.score(times.parts)
        self.priced += len(near)
        return Priced(part.take(near), score, times.seconds, usage.peak, self.fits(times.at, usage), self.over(usage))

    def sort_out(self, rows: Rows, cutoff: float) -> tuple[Priced, Rows]:
        """Of rows with scores up to the cutoff those that fit, priced, and those that don't; not more than a batch.

        What is too large for a first rank already isn't timed in full: some of it may be slower.
        """
        rows = rows.take(self._least_score(rows) <= cutoff)
        maybe = self._first_rank(rows)[1]
        large, part = rows.take(~maybe), rows.take(maybe)
        if not len(part):
            return Priced.none(), large
        priced = self._price(part, cutoff, bounded=True)
        return priced.take(priced.fits), Rows.join([large, priced.rows.take(~priced.fits)])

    def price_fitting(self, rows: Rows, cutoff: float = np.inf, hopeful: Hopeful | None = None) -> Priced:
        """The same of those that fit, and that are `hopeful` by lower bounds on their score and bytes.

        In the order of what each takes, as most are soon out: micro-batches and pipelines, shared by all shardings; the
        memory of a first rank; the time without a pipeline's ends; the memory of all; the whole time.
        """
        parts = [Priced.none()]
        for part in batches(rows):
            part = part.take(self.bound(self.inside(part)) <= cutoff)
            least, may = self._first_rank(part)
            part, least = part.take(may), least[may]
            bound = self._least_score(part)
            near = bound <= cutoff
            if hopeful is not None:
                near &= hopeful(part, bound, least)
            part = part.take(near)
            if not len(part):
                continue
            at = Columns(self.space.table(part), self.facts, self.c)
            usage = memory(at)
            index = np.flatnonzero(self.fits(at, usage))
            near, times = self.times(part.take(index), cutoff, bounded=True)
            self.priced, index = self.priced + len(index), index[near]
            score, peak, over = self.objective.score(times.parts), usage.peak[index], self.over(usage)[index]
            parts.append(Priced(part.take(index), score, times.seconds, peak, np.ones(len(index), dtype=bool), over))
        return Priced.join(parts)

    def _least_score(self, rows: Rows) -> np.ndarray:
        """Lower bound on the rows' scores: without what the ends of a pipeline share and other ranks don't."""
        if not len(rows):
            return np.zeros(0)
        return self.objective.score(outer(self.columns(self.space.table(rows)), self.inside(rows), ends=False).parts)

    def fits(self, at: Columns, usage: Memory) -> np.ndarray:
        """Whether each row fits on its device, and its offloaded memory on the host."""
        fits = self.over(usage) <= 0
        if self.headroom is None or self.headroom >= 0:
            fits &= host_bytes(at, usage, fits) <= at.chip.host_bytes
        return fits

    def _first_rank(self, rows: Rows, *without: str) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of a pipeline's first rank `without` these kinds (a sixth of the work for all); whether they fit."""
        at = Columns(self.space.table(rows), self.facts, self.c)
        parts = first_rank(at)
        least = sum(parts[kind] for kind in KINDS if kind not in without)
        rebuilt = np.where(self.space.plain[rows.recompute], 0.0, parts["other"]) if "rebuilt" in without else 0.0
        least, usable = np.asarray(least - rebuilt), at.chip.capacity * at.trainer.usable
        if self.headroom is None:
            return least, np.asarray(memory_band(at, least)[1] <= usable)
        return least, np.asarray(least <= usable * (1.0 - self.headroom))

    def floor(self, rows: Rows) -> np.ndarray:
        """Lower bound in bytes on the rows' memory with any recomputation."""
        rows = replace(rows, recompute=self.space.leanest[rows.pipe])
        return np.concatenate([np.zeros(0), *(self._first_rank(part, "rebuilt")[0] for part in batches(rows))])

    def may_fit(self, rows: Rows, *without: str) -> np.ndarray:
        """Whether it fits with any sharding: what most ranks share, without buffers, of which others may have fewer."""
        rows = replace(rows, shard=self.space.most_sharded[rows.core])
        parts = (self._first_rank(part, "buffers", *without)[1] for part in batches(rows))
        return np.concatenate([np.zeros(0, bool), *parts])

    def may_ever_fit(self, rows: Rows) -> np.ndarray:
        """The same with any recomputation."""
        return self.may_fit(replace(rows, recompute=self.space.leanest[rows.pipe]), "rebuilt")

    def host_may_fit(self, rows: Rows) -> np.ndarray:
        """Whether the host has room for what the rows offload with any sharding and recomputation."""
        if self.headroom is not None and self.headroom < 0:
            return np.ones(len(rows), dtype=bool)
        at = Columns(self.space.table(replace(rows, shard=self.space.most_sharded[rows.core])), self.facts, self.c)
        return np.asarray(least_host_bytes(at) <= at.chip.host_bytes)


def set_no_extras(table: Table) -> None:
    """Sets no recomputation and offloaded activations, so that a bound excludes sp's second gather too."""
    table.recompute = np.full(len(table), RECOMPUTE.index("none"))
    table.offload = np.full(len(table), OFFLOADS.index("activations"))


def make_pricer(space: Space, objective: Objective, headroom: float | None, like: Pricer | None = None) -> Pricer:
    """A pricer of the space; `like`: one whose prices serve where its units are the same."""
    if like is None or like.space.units != space.units:
        return Pricer(space, objective, headroom, constants_of([space.template.chip]), unit_facts(space.units))
    pricer = Pricer(space, objective, headroom, like.c, like.facts)
    pricer.prices = like.prices
    return pricer
