"""Rows of a space priced: their units once, then time, memory and score by the hundred thousand.

rows --table--> columns --step, memory--> seconds, bytes --objective--> score; fits, on device and host
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.constants import Constants, constants
from scalewright.plan.cost.kernels import Prices, flatten, price
from scalewright.plan.cost.memory import Memory, memory
from scalewright.plan.cost.table import Facts, Table, unit_facts
from scalewright.plan.cost.timeline import step
from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.objective import Objective
from scalewright.plan.search.space import Rows, Space

HOST_BYTES = 250e9  # of a host's memory for each device, as a DGX H100 has 2 TB for eight
MOVED = ("parameters", "gradients", "optimizer", "activations")  # kinds of memory that offloading moves
BATCH = 8192  # rows that are priced at once: what fits the processor's cache
COLUMNS = ("score", "seconds", "peak", "fits", "over")


@dataclass
class Priced:
    """Rows with what they cost."""

    rows: Rows
    score: np.ndarray
    seconds: np.ndarray
    peak: np.ndarray  # bytes
    fits: np.ndarray
    over: np.ndarray  # bytes beyond what the device has room for; below 0 it fits there

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, at: np.ndarray) -> Priced:
        """Some of them."""
        columns = (getattr(self, key)[at] for key in COLUMNS)
        return Priced(self.rows.take(at), *columns)

    @staticmethod
    def join(many: list[Priced]) -> Priced:
        """All of several."""
        columns = [np.concatenate([getattr(p, key) for p in many]) for key in COLUMNS]
        return Priced(Rows.join([p.rows for p in many]), *columns)


@dataclass
class Pricer:
    """A space's units, priced once; then rows by the hundred thousand."""

    space: Space
    objective: Objective
    headroom: float | None  # None: a layout must fit up to the p90 of its memory
    c: Constants
    facts: Facts
    prices: Prices
    priced: int = 0
    bounds: np.ndarray | None = None  # of every core, see Finder.bounds

    def over(self, held: Memory) -> np.ndarray:
        """Bytes of the rows beyond what a device has room for: with the headroom, or up to their p90."""
        if self.headroom is None:
            return np.asarray(held.high - held.usable)
        return np.asarray(held.peak - held.usable * (1.0 - self.headroom))

    def memories(self, rows: Rows) -> Memory:
        """Memory of the rows."""
        return memory(self.space.table(rows), self.facts, self.c)

    def price(self, rows: Rows) -> Priced:
        """Time and memory, in batches."""
        found = []
        for start in range(0, max(len(rows), 1), BATCH):
            part = rows.take(slice(start, start + BATCH))
            table = self.space.table(part)
            taken, held = step(table, self.facts, self.prices, self.c), memory(table, self.facts, self.c)
            fits = self.fits(table, held)
            score = self.objective.score(taken.parts)
            found.append(Priced(part, score, taken.seconds, held.peak, fits, self.over(held)))
        self.priced += len(rows)
        return Priced.join(found)

    def fits(self, table: Table, held: Memory) -> np.ndarray:
        """Rows that fit: on the device, and what is offloaded on its host."""
        fits = self.over(held) <= 0
        away = np.flatnonzero(fits & (table.offload != OFFLOADS.index("none")))
        if len(away) and (self.headroom is None or self.headroom >= 0):
            fits[away] = self.on_host(table, held, away) <= HOST_BYTES
        return fits

    def on_host(self, table: Table, held: Memory, at: np.ndarray) -> np.ndarray:
        """Bytes of some of the rows that are on the host, of one device."""
        some = table.take(at)
        some.offload = np.full(len(at), OFFLOADS.index("none"))
        here = memory(some, self.facts, self.c)
        return np.asarray(sum(np.maximum(here.parts[kind] - held.parts[kind][at], 0.0) for kind in MOVED))

    def leanest(self, rows: Rows, offload: bool = True) -> Rows:
        """The rows with all recomputed, and all offloaded."""
        kinds = [(kind == "full", share) for kind, share, _ in self.space.reruns]
        names = [OFFLOADS[one] for one in self.space.offloads]
        away = (names.index("all") if "all" in names else len(names) - 1) if offload else 0
        again = kinds.index(max(kinds))
        return Rows(rows.core, rows.pipe, rows.shard, np.full(len(rows), again), np.full(len(rows), away))

    def may_fit(self, rows: Rows) -> np.ndarray:
        """Rows that may fit with some recomputation or offload: what none of them saves is counted alone."""
        held = self.memories(self.leanest(rows))
        certain = held.peak - held.parts["other"]
        return np.asarray(certain <= held.usable * (1.0 - (self.headroom or 0.0)))


def make_pricer(
    space: Space, objective: Objective, headroom: float | None, c: Constants | None = None
) -> Pricer:
    """The units of a space, priced."""
    c = c or constants()
    facts = unit_facts(space.units)
    return Pricer(space, objective, headroom, c, facts, price(flatten(space.units, facts), c))
