"""How much stragglers slow a pipeline: the step as it was against one in which no operation is unusual.

    usual(operation)  = mean over stages, replicas and steps of work of its name; median of transfers
    S                 = T(as recorded) / T(all as usual)
    S of X            = T(X as recorded, the rest as usual) / T(all as usual)     X: stage, replica, name
    M of X            = (T - T(X as usual)) / (T - T(all as usual))               share that X explains

The definitions are those of Lin et al., OSDI 2025 (equations 1, 2, 4 and 5); T is the mean of the steps. When every
operation begins and ends, with the recorded durations or others:

    begin(operation) = max(end of what it waits for)
    end(work)        = begin + duration
    end(collective)  = max over those in it of begin + transfer

All steps and replicas are computed at a time, as arrays [steps, replicas]; a step begins at 0. The gaps between what an
operation waits for and its start (the host's work, mostly) are left out, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.operations.order import Order, order
from scalewright.diagnose.operations.table import COMMUNICATES, Table, kind_of


def durations(table: Table, order: Order) -> np.ndarray:
    """Seconds that operations need by themselves, collectives the transfer; float64 [operations, steps, replicas]."""
    needs = table.end - table.start
    for rows in order.groups:
        kind = kind_of(table.operations[rows[0]].name)
        if kind.waits:
            came = table.start[rows].max(axis=0)
            if kind.over_replicas:
                came = came.max(axis=1, keepdims=True)
            needs[rows] = np.maximum(table.end[rows] - came, 0)
    return np.asarray(needs)


def step_times(table: Table, order: Order, needs: np.ndarray) -> np.ndarray:
    """Seconds of each step when operations need `needs`; float64 [steps]."""
    end = np.zeros_like(needs)
    for rows in order.groups:
        kind = kind_of(table.operations[rows[0]].name)
        begin = np.zeros(needs.shape[1:])
        for row in rows:
            for before in order.waits_for[row]:
                np.maximum(begin, end[before], out=begin)
        if kind.over_replicas:
            begin = np.broadcast_to(begin.max(axis=1, keepdims=True), begin.shape)
        for row in rows:
            end[row] = begin + needs[row]
    return np.asarray(end.max(axis=(0, 2)))


WORST_PCT = 3  # percent of the workers, at least one: the paper's M_W


@dataclass(frozen=True)
class WhatIf:
    """A table with its dependencies; seconds that each operation needs, and that are usual for it."""

    table: Table
    order: Order
    needs: np.ndarray
    usual: np.ndarray

    def time(self, needs: np.ndarray) -> float:
        """Seconds of the mean step."""
        return float(step_times(self.table, self.order, needs).mean())

    def recorded_in(self, mask: np.ndarray) -> float:
        """Seconds when what `mask` selects is as recorded and the rest as usual."""
        return self.time(np.where(mask, self.needs, self.usual))

    def usual_in(self, mask: np.ndarray) -> float:
        """Seconds when what `mask` selects is as usual and the rest as recorded."""
        return self.time(np.where(mask, self.usual, self.needs))

    def of_stage(self, stage: int) -> np.ndarray:
        """A stage's operations; a mask [operations, 1, 1]."""
        return np.array([operation.stage == stage for operation in self.table.operations])[:, None, None]

    def of_replica(self, replica: int) -> np.ndarray:
        """A replica's operations; a mask [1, 1, replicas]."""
        return np.asarray(np.array(self.table.replicas)[None, None] == replica)

    def of_name(self, name: str) -> np.ndarray:
        """Operations of a name, both ends of a transfer together; a mask [operations, 1, 1]."""
        return np.array([together(operation.name) == name for operation in self.table.operations])[:, None, None]


def what_if(table: Table) -> WhatIf:
    """The table ready for questions; raises NotATrace where its operations wait in a circle."""
    dependencies = order(table)
    needs = durations(table, dependencies)
    usual = np.empty_like(needs)
    for name in {operation.name for operation in table.operations}:
        rows = [operation.name == name for operation in table.operations]
        usual[rows] = np.median(needs[rows]) if name in COMMUNICATES else needs[rows].mean()
    return WhatIf(table, dependencies, needs, usual)


def together(name: str) -> str:
    """A name for both ends of a transfer: `forward-transfer`."""
    kind = kind_of(name)
    return f"{'forward' if kind.direction > 0 else 'backward'}-transfer" if kind.passes else name


@dataclass(frozen=True)
class Slowdown:
    """The what-ifs of a table. Seconds are of the mean step; `recorded_s` has the gaps, `needed_s` hasn't.

    `workers`: the worst, as (stage, replica). `by_workers`, `by_last_stage`: shares of the slowdown.
    """

    recorded_s: float
    needed_s: float
    usual_s: float
    by_stage: dict[int, float]
    by_replica: dict[int, float]
    by_name: dict[str, float]
    workers: list[tuple[int, int]]
    by_workers: float
    by_last_stage: float

    @property
    def factor(self) -> float:
        """S."""
        return self.needed_s / self.usual_s if self.usual_s else 1.0


def slowdown(asked: WhatIf) -> Slowdown:
    """All what-ifs of the paper."""
    table = asked.table
    needed, usual = asked.time(asked.needs), asked.time(asked.usual)
    names = sorted({together(operation.name) for operation in table.operations})

    def each(values: list[int], mask: Callable[[int], np.ndarray]) -> dict[int, float]:
        return {value: asked.recorded_in(mask(value)) / max(usual, 1e-12) for value in values}

    by_stage, by_replica = each(table.stages, asked.of_stage), each(table.replicas, asked.of_replica)
    workers = [(stage, replica) for stage in table.stages for replica in table.replicas]
    workers.sort(key=lambda pair: -min(by_stage[pair[0]], by_replica[pair[1]]))
    workers = workers[: math.ceil(len(workers) * WORST_PCT / 100)]

    def explained(mask: np.ndarray) -> float:
        lost = needed - usual
        return (needed - asked.usual_in(mask)) / lost if lost > 0 else 0.0

    return Slowdown(
        recorded_s=float(table.step_s.mean()),
        needed_s=needed,
        usual_s=usual,
        by_stage=by_stage,
        by_replica=by_replica,
        by_name={name: asked.recorded_in(asked.of_name(name)) / max(usual, 1e-12) for name in names},
        workers=workers,
        by_workers=explained(of_workers(asked, workers)),
        by_last_stage=explained(asked.of_stage(table.stages[-1])),
    )


def of_workers(asked: WhatIf, workers: list[tuple[int, int]]) -> np.ndarray:
    """The operations of some workers; a mask [operations, 1, replicas]."""
    masks = [asked.of_stage(stage) & asked.of_replica(replica) for stage, replica in workers]
    return np.asarray(np.logical_or.reduce(masks))
