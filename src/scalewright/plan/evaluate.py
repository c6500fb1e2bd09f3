"""A table priced: time and memory of every row, in one pass over arrays; the door to all formulas.

requests --> Prepared (nothing in it depends on a constant) --> Outcome: Step, Memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewright.plan.constants import Constants, constants
from scalewright.plan.kernels import Flat, Prices, flatten, price
from scalewright.plan.memory import Memory, memory
from scalewright.plan.request import Request
from scalewright.plan.table import RECOMPUTE, Facts, Table, table, unit_facts
from scalewright.plan.timeline import Step, step

LADDER = ("none", "core", "full")  # what a trainer's recipe turns on, in order, until the run fits


@dataclass
class Prepared:
    """A table and what follows from its units."""

    table: Table
    facts: Facts
    flat: Flat
    unknown: np.ndarray  # rows whose recomputation nobody stated


@dataclass
class Outcome:
    """Time and memory of every row of a table."""

    table: Table
    facts: Facts
    step: Step
    memory: Memory | None
    prices: Prices


def prepare(requests: Sequence[Request] | Table, c: Constants | None = None) -> Prepared:
    """The table of these requests; a run that doesn't state its recomputation gets the least that fits."""
    built = requests if isinstance(requests, Table) else table(requests)
    facts = unit_facts(built.units)
    unknown = built.recompute == RECOMPUTE.index("unknown")
    if unknown.any():
        recompute, share = _least(built, facts, unknown, c or constants())
        built = replace(built, recompute=recompute, share=share)
    return Prepared(built, facts, flatten(built.units, facts), unknown)


def evaluate(prepared: Prepared, c: Constants | None = None, with_memory: bool = True) -> Outcome:
    """Prices everything."""
    c = c or constants()
    prices = price(prepared.flat, c)
    found = step(prepared.table, prepared.facts, prices, c)
    held = memory(prepared.table, prepared.facts, c) if with_memory else None
    return Outcome(prepared.table, prepared.facts, found, held, prices)


def _least(built: Table, facts: Facts, unknown: np.ndarray, c: Constants) -> tuple[np.ndarray, np.ndarray]:
    """The first rung of the ladder on which a row fits; the last where none does; and the share."""
    chosen = built.recompute.copy()
    open_rows = unknown.copy()
    for rung in LADDER:
        if rung == "full":  # trainers of 2024 and later rebuild modules, not blocks: see recompute.modules
            recent = built.gather(facts.trainers["year"]) >= 2024
            recent &= built.gather(facts.chips["tpu"]) == 0
            share = np.where(open_rows & recent, c["recompute.modules"], built.share)
            chosen = np.where(open_rows, np.where(recent, RECOMPUTE.index("share"), RECOMPUTE.index("full")), chosen)
            return chosen, share
        chosen = np.where(open_rows, RECOMPUTE.index(rung), chosen)
        open_rows &= ~memory(replace(built, recompute=chosen), facts, c).fits
        if not open_rows.any():
            break
    return chosen, built.share
