"""A table priced: time and memory of every row, in one pass over arrays; the door to all formulas.

requests --> Prepared (nothing in it depends on a constant) --> Outcome: Step, Memory

log seconds ~ normal(log p50, s)        p10, p90 = p50 · exp(-+1.2816 s)
s: what makes this row uncertain (spread.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewright.plan.constants import Constants, constants
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.facts import Facts, unit_facts
from scalewright.plan.cost.kernels import Flat, flatten, price
from scalewright.plan.cost.memory import Memory, host_bytes, memory
from scalewright.plan.cost.table import RECOMPUTE, Table, table
from scalewright.plan.cost.timeline import Step, step
from scalewright.plan.request import Request

# What a trainer's recipe turns on, in order, until the run fits; then see _least
LADDER = (RECOMPUTE.index("none"), RECOMPUTE.index("core"))


@dataclass
class Prepared:
    """A table and what follows from its units."""

    table: Table
    facts: Facts
    flat: Flat
    unknown: np.ndarray  # rows whose recomputation nobody stated


@dataclass
class Outcome:
    """Time and memory of every row of a table, `step.at`."""

    step: Step
    memory: Memory
    host: np.ndarray  # bytes of host memory for each device

    @property
    def fits(self) -> np.ndarray:
        """Whether each row fits on its device, and on the host what is offloaded."""
        return np.asarray(self.memory.fits & (self.host <= self.step.at.chip.host_bytes))


def prepare(requests: Sequence[Request], c: Constants | None = None) -> Prepared:
    """The table of these requests; a run that doesn't state its recomputation gets the least that fits."""
    built = table(requests)
    facts, unknown = unit_facts(built.units), built.recompute == RECOMPUTE.index("unknown")
    if unknown.any():
        built = replace(built, recompute=_least(built, facts, unknown, c or constants()))
    return Prepared(built, facts, flatten(built.units, facts), unknown)


def evaluate(prepared: Prepared, c: Constants) -> Outcome:
    """Prices everything."""
    timed = evaluate_time(prepared, c)
    usage = memory(timed.at)
    return Outcome(timed, usage, host_bytes(timed.at, usage))


def evaluate_time(prepared: Prepared, c: Constants) -> Step:
    """Prices the time alone."""
    return step(PricedColumns(prepared.table, prepared.facts, c, price(prepared.flat, c)))


def evaluate_memory(prepared: Prepared, c: Constants) -> Memory:
    """Prices the memory alone."""
    return memory(Columns(prepared.table, prepared.facts, c))


def _least(built: Table, facts: Facts, unknown: np.ndarray, c: Constants) -> np.ndarray:
    """The first rung of the ladder on which a row fits.

    After these comes what the trainer's generation does (Megatron's recipes of 2024 and later rebuild some modules, XLA
    keeps what a policy says), then whole blocks, unless not even they are enough.
    """
    last = facts.trainers.take(built.unit).tightest
    chosen, open_rows = built.recompute.copy(), unknown.copy()
    for rung in (*LADDER, last, RECOMPUTE.index("full")):
        chosen = np.where(open_rows, rung, chosen)
        open_rows &= ~memory(Columns(replace(built, recompute=chosen), facts, c)).fits
    return np.where(open_rows, last, chosen)
