"""A table priced: time and memory of every row, in one pass over arrays; the door to all formulas.

    requests --> Prepared (nothing in it depends on a constant) --> Outcome: Step, Memory

    log seconds ~ normal(log p50, s)        p10, p90 = p50 · exp(-+1.2816 s)
    s^2 = base^2 + sum over what makes this row uncertain (band.* in plan/data/constants.yaml)

Uncertain: an unknown trainer · one that was never measured · recomputation that nobody stated · no layout at all · a
batch or a shape that had to be assumed · experts · time that waits for the host or for links between nodes · a device,
a generation of devices, or a feature of the layout (features.py) that was never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from scalewright.plan.constants import Constants, constants
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.facts import Facts, unit_facts
from scalewright.plan.cost.kernels import Flat, flatten, price
from scalewright.plan.cost.memory import SIGMA, Memory, host_bytes, memory
from scalewright.plan.cost.table import RECOMPUTE, Table, table
from scalewright.plan.cost.timeline import Step, step
from scalewright.plan.features import never
from scalewright.plan.frameworks import KERNELS
from scalewright.plan.request import Request
from scalewright.spec.hardware.device_families import Family
from scalewright.spec.hardware.devices import load_device

LADDER = ("none", "core")  # what a trainer's recipe turns on, in order, until the run fits; then see _least
# Assumptions that move the time much: layout, batch, shape
HEAVY = ("tp ", "pp ", "mbs ", "gbs ", "shape ", "layers ", "layout", "seq ", "heads ")
# Devices with step times in data/measured_runs.csv; a test compares.
MEASURED_DEVICES = frozenset({
    "a100-sxm-40", "a100-sxm-80", "b200-sxm", "gb200-nvl72", "gb300-nvl72", "h100-sxm", "tpu-v4p", "tpu-v5e",
    "tpu-v5p", "tpu-v6e", "v100-sxm2-32",
})  # fmt: skip


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

    The last rung is whole blocks, or what the trainer's generation does instead: Megatron's recipes of 2024 and later
    rebuild some modules, XLA keeps what a policy says.
    """
    trainer = facts.trainers.take(built.unit)
    kernels = trainer.kernels
    modules = (kernels == KERNELS.index("modern")) & (trainer.year >= 2024)
    last = np.where(modules, RECOMPUTE.index("modules"), RECOMPUTE.index("full"))
    last = np.where(kernels == KERNELS.index("xla"), RECOMPUTE.index("policy"), last)
    chosen, open_rows = built.recompute.copy(), unknown.copy()
    for rung in LADDER:
        chosen = np.where(open_rows, RECOMPUTE.index(rung), chosen)
        open_rows &= ~memory(Columns(replace(built, recompute=chosen), facts, c)).fits
    chosen = np.where(open_rows, last, chosen)
    # whole blocks where that is not enough, either, and they are
    open_rows &= ~memory(Columns(replace(built, recompute=chosen), facts, c)).fits
    whole = np.where(open_rows, RECOMPUTE.index("full"), chosen)
    return np.where(memory(Columns(replace(built, recompute=whole), facts, c)).fits, whole, chosen)


def spread(outcome: Outcome, requests: Sequence[Request], unknown: np.ndarray, c: Constants) -> np.ndarray:
    """The standard deviation of log seconds, a number a row."""
    at, parts, seconds = outcome.step.at, outcome.step.parts, outcome.step.seconds
    links = sum(parts[name] for name in ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"))
    known, wide = at.trainer.known, at.table.devices > at.chip.domain
    timed = np.array([request.chip.timings is not None for request in requests])  # its own probe says enough
    unmeasured = (known > 0) & (at.trainer.measured == 0) & ~timed
    siblings = np.array([request.chip.name not in MEASURED_DEVICES for request in requests])
    strange = np.array([request.chip.family.kernels not in _measured_kernels() for request in requests])
    strangers = np.array([len(never(r)) for r in requests], dtype=float)
    guesses = np.array([sum(line.startswith(HEAVY) for line in r.assumed) for r in requests], dtype=float)
    square = (
        c["band.base"] ** 2
        + (c["band.trainer"] * (1 - known)) ** 2
        + (c["band.unmeasured"] * unmeasured) ** 2
        + (c["band.recompute"] * unknown) ** 2
        + (c["band.experts"] * (at.work.sparse > 0)) ** 2
        + (c["band.links"] * links / seconds * np.where(wide, 1.0, 0.5)) ** 2
        + (c["band.host"] * np.minimum(outcome.step.host, 1.0)) ** 2
        + (c["band.guess"] ** 2) * guesses
        + (c["band.feature"] ** 2) * strangers * ~timed
        + (c["band.device"] * strange * ~timed) ** 2
        + (c["band.sibling"] * siblings * ~timed) ** 2
    )
    return np.asarray(np.sqrt(square))


@lru_cache(maxsize=1)
def _measured_kernels() -> frozenset[Family]:
    """The families whose constants were fitted on, or compared with, step times of some device."""
    return frozenset(load_device(name).resolved_family.kernels for name in MEASURED_DEVICES)


def quantiles(seconds: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p10 and p90."""
    return seconds * np.exp(-SIGMA * sigma), seconds * np.exp(SIGMA * sigma)
