"""Prices rows of a space: its units once, then time, memory and score of 100 000s of rows.

rows --table--> columns --step, memory--> seconds, bytes --objective--> score; fits, on device and host
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalewright.plan.chips import constants_of
from scalewright.plan.constants import Constants
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.facts import Facts, unit_facts
from scalewright.plan.cost.kernels import Prices, flatten, price
from scalewright.plan.cost.memory import Memory, host_bytes, memory
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.timeline import Step, step
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.search.objective import Objective
from scalewright.plan.search.space import Rows, Space

BATCH = 8192  # rows that are priced at once, so that their columns fit the CPU's cache
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
        """The score of these parts of a step and of the wait for the host."""
        host = times.parts["other"] - times.detail["fixed"] - times.detail["late"]
        score = self.objective.score({part: times.parts[part] for part in parts})
        return np.asarray(score + self.objective.weights["other"] * np.maximum(host, 0.0))

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

    def price(self, rows: Rows, cutoff: float = np.inf) -> Priced:
        """Time and score of rows, and the memory of those with scores up to the cutoff: the others are left out."""
        parts = []
        for start in range(0, max(len(rows), 1), BATCH):
            part = rows.take(slice(start, start + BATCH))
            times = self.step(self.space.table(part))
            score, seconds = self.objective.score(times.parts), times.seconds
            at: Columns = times.at
            if not (near := score <= cutoff).all():
                part, score, seconds = part.take(near), score[near], seconds[near]
                at = Columns(at.table.take(near), self.facts, self.c)
            usage = memory(at)
            parts.append(Priced(part, score, seconds, usage.peak, self.fits(at, usage), self.over(usage)))
            self.priced += len(part)
        return Priced.join(parts)

    def fits(self, at: Columns, usage: Memory) -> np.ndarray:
        """Whether each row fits on its device, and its offloaded memory on the host."""
        fits = self.over(usage) <= 0
        if self.headroom is None or self.headroom >= 0:
            fits &= host_bytes(at, usage, fits) <= at.chip.host_bytes
        return fits

    def floor(self, rows: Rows, offload: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Lower bound in bytes on the rows' memory with any recomputation and this offload; and what is usable."""
        shares = [(kind == "full", share) for kind, share, _ in self.space.recomputes]
        recompute = np.full(len(rows), shares.index(max(shares)))
        usage = self.memory(Rows(rows.core, rows.pipe, rows.shard, recompute, np.full(len(rows), offload)))
        return np.asarray(usage.peak - usage.parts["other"]), usage.usable

    def may_fit(self, rows: Rows) -> np.ndarray:
        """Whether rows may fit with recomputation or offload: a lower bound on their memory does."""
        names = [OFFLOADS[number] for number in self.space.offloads]
        # Each moves something else where a trainer hasn't all at once: DeepSpeed's optimizer, or parameters.
        may = np.zeros(len(rows), dtype=bool)
        for offload in [names.index("all")] if "all" in names else range(len(names)):
            bound, usable = self.floor(rows, offload)
            may |= bound <= usable * (1.0 - (self.headroom or 0.0))
        return may


def set_no_extras(table: Table) -> None:
    """Sets no recomputation and offloaded activations, so that a bound excludes sp's second gather too."""
    table.recompute = np.full(len(table), RECOMPUTE.index("none"))
    table.offload = np.full(len(table), OFFLOADS.index("activations"))


def make_pricer(space: Space, objective: Objective, headroom: float | None, c: Constants | None = None) -> Pricer:
    """A pricer with the units of the space priced."""
    c = c or constants_of([space.template.chip])
    facts = unit_facts(space.units)
    return Pricer(space, objective, headroom, c, facts, price(flatten(space.units, facts), c))
