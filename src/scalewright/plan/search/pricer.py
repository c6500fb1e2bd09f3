"""Prices rows of a space: its units once, then time, memory and score of 100 000s of rows.

rows --table--> columns --step, memory--> seconds, bytes --objective--> score; fits, on device and host
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2

import numpy as np

from scalewright.plan.chips import constants_of
from scalewright.plan.constants import Constants
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.facts import Facts, unit_facts
from scalewright.plan.cost.kernels import Prices, flatten, price
from scalewright.plan.cost.memory import KINDS, Memory, first_rank, host_bytes, memory, memory_band
from scalewright.plan.cost.price_list import price_list
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.timeline import Inner, Step, inner, outer, states_seconds, step
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.search.objective import Objective
from scalewright.plan.search.space import Rows, Space

# Rows with their pipes, bounds on their scores without states, and seconds of their slowest micro-batch
Pipes = tuple[Rows, np.ndarray, np.ndarray]
BATCH = 8192  # rows that are priced at once, so that their columns fit the CPU's cache
# By lower bounds on rows' scores and bytes
Hopeful = Callable[[Rows, np.ndarray, np.ndarray], np.ndarray]
COLUMNS = ("score", "seconds", "peak", "fits", "over")


@dataclass
class Priced:
    """Rows with their score, time and memory."""

    rows: Rows
    score: np.ndarray
    seconds: np.ndarray
    peak: np.ndarray  # bytes
    fits: np.ndarray
    over: np.ndarray  # bytes beyond the device's usable memory; negative where it fits

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: np.ndarray) -> Priced:
        """The rows at these indices, or under this mask."""
        return Priced(self.rows.take(index), *(getattr(self, key)[index] for key in COLUMNS))

    @staticmethod
    def join(parts: list[Priced]) -> Priced:
        """The rows of all parts."""
        if not parts:
            zeros = np.zeros(0)
            return Priced(Rows(*[zeros.astype(np.intp)] * 5), zeros, zeros, zeros, zeros > 0, zeros)
        columns = [np.concatenate([getattr(part, key) for part in parts]) for key in COLUMNS]
        return Priced(Rows.join([part.rows for part in parts]), *columns)


@dataclass
class Pricer:
    """Prices rows of a space from the prices of its units."""

    space: Space
    objective: Objective
    headroom: float | None  # None: a layout must fit up to the p90 of its memory
    c: Constants
    facts: Facts
    prices: Prices
    priced: int = 0

    @cached_property
    def bounds(self) -> np.ndarray:
        """Lower bound on the score of every layout of each core."""
        space, bounds = self.space, []
        fewest = {pp: space.pipe["stages"][i : i + n].min(0) for pp, (i, n) in space.pipes.items()}
        depths, inverse = np.unique(space.core["pp"], return_inverse=True)
        stages = np.array([fewest[int(pp)] for pp in depths])[inverse]
        for start in range(0, space.cores, BATCH):
            cores = np.arange(start, min(start + BATCH, space.cores))
            table = space.table(space.bare(cores))
            table.stages, table.virtual_stages = stages[cores], np.ones(len(cores))
            set_no_extras(table)
            scores = []
            for kind in ("1f1b", "dualpipe"):  # embedding and head on a rank each, or half of both on each
                table.schedule = np.full(len(cores), SCHEDULES.index(kind))
                scores.append(self.bound(self.step(table), ("compute", "tp_exposed", "cp_exposed")))
            bounds.append(np.minimum(*scores))
        return np.concatenate(bounds)

    def bound(self, times: Step, parts: tuple[str, ...]) -> np.ndarray:
        """The score of these parts of a step, of the wait for the host, and of the stragglers of both."""
        host = np.maximum(times.parts["other"] - times.detail["fixed"] - times.detail["late"], 0.0)
        chosen = {part: times.parts[part] for part in parts}
        late = self._straggling * (sum(chosen.values()) + host)
        return np.asarray(self.objective.score(chosen) + self.objective.weights["other"] * (host + late))

    def bound_pipes(self, rows: Rows, cutoff: float) -> Pipes:
        """Pairs of core and pipe with their bounds: those up to the cutoff."""
        bounds, slow = [np.zeros(0)], [np.zeros(0)]
        for start in range(0, len(rows), BATCH):
            table = self.space.table(rows.take(slice(start, start + BATCH)))
            set_no_extras(table)
            times = self.step(table)
            bounds.append(
                self.bound(times, ("compute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed"))
            )
            slow.append(times.detail["slow"])
        bound = np.concatenate(bounds)
        near = bound <= cutoff
        return rows.take(near), bound[near], np.concatenate(slow)[near]

    def states_bound(self, rows: Rows, slow: np.ndarray) -> np.ndarray:
        """Lower bound on the score of the optimizer's step and the host's traffic: states shared by most ranks."""
        rows = replace(rows, shard=self.space.most_sharded[rows.core])
        at = PricedColumns(self.space.table(rows), self.facts, self.c, self.prices)
        return np.asarray(self.objective.weights["optimizer"] * states_seconds(at, slow, price_list(at)))

    def over(self, usage: Memory) -> np.ndarray:
        """Bytes of the rows beyond a device's usable memory: with the headroom, or at their p90."""
        if self.headroom is None:
            return np.asarray(usage.high - usage.usable)
        return np.asarray(usage.peak - usage.usable * (1.0 - self.headroom))

    def memory(self, rows: Rows) -> Memory:
        """The memory use of rows."""
        return memory(Columns(self.space.table(rows), self.facts, self.c))

    def step(self, table: Table) -> Step:
        """The time of a table's rows."""
        return step(PricedColumns(table, self.facts, self.c, self.prices))

    def times(self, rows: Rows) -> Step:
        """The time of rows: micro-batches and pipeline once for all that differ in their sharding alone."""
        if self.space.template.chip.timings is not None:
            return self.step(self.space.table(rows))
        return outer(self._columns(rows), self.inside(rows))

    def _columns(self, rows: Rows) -> PricedColumns:
        return PricedColumns(self.space.table(rows), self.facts, self.c, self.prices)

    def inside(self, rows: Rows) -> Inner:
        """Seconds of the rows' micro-batches and pipelines."""
        space, pipes = self.space, len(self.space.pipe["virtual_stages"])
        extras = rows.recompute * len(space.offloads) + rows.offload
        number = (rows.core * pipes + rows.pipe) * (len(space.recomputes) * len(space.offloads)) + extras
        _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
        return inner(self._columns(rows.take(first))).take(inverse)

    def bound_inside(self, rows: Rows, inside: Inner) -> np.ndarray:
        """The score of micro-batches and pipelines and of their stragglers."""
        names = {"tp": "tp_exposed", "cp": "cp_exposed", "ep": "ep_exposed", "host": "other"}
        parts = {names.get(name, name): seconds for name, seconds in inside.of.items()}
        parts |= {"pp_bubble": inside.fill, "pp_exposed": inside.message}
        late = self._straggling * sum(parts.values()) * self.objective.weights["other"]
        return np.asarray(self.objective.score(parts) + late)

    @property
    def _straggling(self) -> float:
        """Seconds that stragglers add to one of a step."""
        request = self.space.template
        return self.c["wait.straggler"] * log2(max(request.devices / max(request.chip.node, 1), 1.0))

    def price(self, rows: Rows, cutoff: float = np.inf) -> Priced:
        """Time and score of rows, and the memory of those with scores up to the cutoff: the others are left out."""
        parts = []
        for start in range(0, max(len(rows), 1), BATCH):
            part = rows.take(slice(start, start + BATCH))
            times = self.times(part)
            score, seconds = self.objective.score(times.parts), times.seconds
            at: Columns = times.at
            if not (near := score <= cutoff).all():
                part, score, seconds = part.take(near), score[near], seconds[near]
                at = Columns(at.table.take(near), self.facts, self.c)
            usage = memory(at)
            parts.append(Priced(part, score, seconds, usage.peak, self.fits(at, usage), self.over(usage)))
            self.priced += len(part)
        return Priced.join(parts)

    def sort_out(self, rows: Rows, cutoff: float) -> tuple[Priced, Rows]:
        """Of rows with scores up to the cutoff those that fit, priced, and those that don't; not more than a batch."""
        times = self.times(rows)
        score = self.objective.score(times.parts)
        near = np.flatnonzero(score <= cutoff)
        near_rows = rows.take(near)
        maybe = self._first_rank(near_rows)[1]
        part, index = near_rows.take(maybe), near[maybe]
        at = Columns(times.at.table.take(index), self.facts, self.c)
        usage = memory(at)
        priced = Priced(part, score[index], times.seconds[index], usage.peak, self.fits(at, usage), self.over(usage))
        self.priced += len(near)
        return priced.take(priced.fits), Rows.join([near_rows.take(~maybe), part.take(~priced.fits)])

    def price_fitting(self, rows: Rows, cutoff: float = np.inf, hopeful: Hopeful | None = None) -> Priced:
        """The same of those that fit, and that are `hopeful` by lower bounds on their score and bytes.

        In the order of what each takes, as most are soon out: micro-batches and pipelines, shared by all shardings; the
        memory of a first rank; that of all; the whole time.
        """
        parts = []
        for start in range(0, max(len(rows), 1), BATCH):
            part = rows.take(slice(start, start + BATCH))
            if self.space.template.chip.timings is None:
                bound = self.bound_inside(part, self.inside(part))
                near = bound <= cutoff
                part, bound = part.take(near), bound[near]
                least, may = self._first_rank(part)
                if hopeful is not None:
                    may &= hopeful(part, bound, least)
                part = part.take(may)
            at = Columns(self.space.table(part), self.facts, self.c)
            usage = memory(at)
            part = part.take(fits := self.fits(at, usage))
            times = self.times(part)
            score = self.objective.score(times.parts)
            columns = (score, times.seconds, usage.peak[fits], np.ones(len(part), dtype=bool), self.over(usage)[fits])
            parts.append(Priced(part, *columns).take(score <= cutoff))
            self.priced += len(part)
        return Priced.join(parts)

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
        plain = np.array([kind == "none" for kind, _, _ in self.space.recomputes])[rows.recompute]
        least = sum(parts[kind] for kind in KINDS if kind not in without)
        rebuilt = np.where(plain, 0.0, parts["other"]) if "rebuilt" in without else 0.0
        least, usable = np.asarray(least - rebuilt), at.chip.capacity * at.trainer.usable
        if self.headroom is None:
            return least, np.asarray(memory_band(at, least)[1] <= usable)
        return least, np.asarray(least <= usable * (1.0 - self.headroom))

    def _floor(self, rows: Rows, *without: str) -> tuple[np.ndarray, np.ndarray]:
        """Lower bound in bytes on the rows' memory with any recomputation; whether it fits."""
        rows = replace(rows, recompute=self.space.leanest[rows.pipe])
        found = [
            self._first_rank(rows.take(slice(start, start + BATCH)), "rebuilt", *without)
            for start in range(0, max(len(rows), 1), BATCH)
        ]
        least, may = (np.concatenate(columns) for columns in zip(*found, strict=True))
        return least, may

    def floor(self, rows: Rows) -> np.ndarray:
        """Lower bound in bytes on the rows' memory with any recomputation."""
        return self._floor(rows)[0]

    def may_fit(self, rows: Rows) -> np.ndarray:
        """Whether a lower bound on the rows' memory with any recomputation fits."""
        return self._floor(rows)[1]

    def may_ever_fit(self, rows: Rows) -> np.ndarray:
        """The same with any sharding: what most ranks share, without buffers, which other stages may have fewer of."""
        return self._floor(replace(rows, shard=self.space.most_sharded[rows.core]), "buffers")[1]


def set_no_extras(table: Table) -> None:
    """Sets no recomputation and offloaded activations, so that a bound excludes sp's second gather too."""
    table.recompute = np.full(len(table), RECOMPUTE.index("none"))
    table.offload = np.full(len(table), OFFLOADS.index("activations"))


def make_pricer(
    space: Space, objective: Objective, headroom: float | None, c: Constants | None = None, like: Pricer | None = None
) -> Pricer:
    """A pricer with the units of the space priced; `like`: one whose prices serve where its units are the same."""
    if like is not None and like.space.units == space.units:
        return Pricer(space, objective, headroom, like.c, like.facts, like.prices)
    c = c or constants_of([space.template.chip])
    facts = unit_facts(space.units)
    return Pricer(space, objective, headroom, c, facts, price(flatten(space.units, facts), c))
