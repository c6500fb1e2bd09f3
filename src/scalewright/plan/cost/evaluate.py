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

SHARES = (0.25, 0.5, 0.75)  # of the blocks, where only some are rebuilt (Megatron's recompute_num_layers)


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
        built = _least(built, facts, unknown, c or constants())
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


def _least(built: Table, facts: Facts, unknown: np.ndarray, c: Constants) -> Table:
    """The table with the first recomputation at which a row fits, of what a trainer's recipe turns on in order.

    Nothing; attention's core; what the trainer's generation does (Megatron's recipes of 2024 and later rebuild some
    modules, XLA keeps what a policy says); whole blocks, as few as are enough, unless not even all are.
    """
    none, core, some, every = (RECOMPUTE.index(kind) for kind in ("none", "core", "share", "full"))
    last = facts.trainers.take(built.unit).tightest
    rungs: list[tuple[np.ndarray | int, float]]
    rungs = [(none, 1.0), (core, 1.0), (np.where(last == every, some, last), SHARES[0])]
    rungs += [*((some, share) for share in SHARES), (every, 1.0)]
    chosen, open_rows = built, unknown
    for kind, share in rungs:
        recompute, shares = np.where(open_rows, kind, chosen.recompute), np.where(open_rows, share, chosen.share)
        chosen = replace(chosen, recompute=recompute, share=shares)
        if not (open_rows := open_rows & ~memory(Columns(chosen, facts, c)).fits).any():
            return chosen
    return replace(chosen, recompute=np.where(open_rows, last, chosen.recompute))
