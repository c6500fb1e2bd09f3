"""How much stragglers slow a pipeline: the step as it was against one in which no operation is unusual.

    usual(operation)  = mean over stages, replicas and steps of work of its name; median of transfers
    S                 = T(as recorded) / T(all as usual)
    S of X            = T(X as recorded, the rest as usual) / T(all as usual)     X: stage, replica, name
    M of X            = (T - T(X as usual)) / (T - T(all as usual))               share that X explains

The definitions are those of Lin et al., OSDI 2025 (equations 1, 2, 4 and 5); T is the mean of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.operations.clock import durations, step_times
from scalewright.diagnose.operations.kinds import COMMUNICATES, kind_of
from scalewright.diagnose.operations.order import Order, order
from scalewright.diagnose.operations.table import Table

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
        return self._of([operation.stage == stage for operation in self.table.operations])

    def of_replica(self, replica: int) -> np.ndarray:
        """A replica's operations; a mask [1, 1, replicas]."""
        return np.asarray(np.array(self.table.replicas)[None, None] == replica)

    def of_name(self, name: str) -> np.ndarray:
        """Operations of a name, both ends of a transfer together; a mask [operations, 1, 1]."""
        return self._of([together(operation.name) == name for operation in self.table.operations])

    def _of(self, rows: list[bool]) -> np.ndarray:
        return np.array(rows)[:, None, None]


def what_if(table: Table) -> WhatIf:
    """The table ready for questions; raises NotATrace where its operations wait in a circle."""
    dependencies = order(table)
    needs = durations(table, dependencies)
    usual = np.empty_like(needs)
    names = np.array([operation.name for operation in table.operations])
    for name in np.unique(names):
        rows = names == name
        usual[rows] = np.median(needs[rows]) if str(name) in COMMUNICATES else needs[rows].mean()
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

    @property
    def gaps(self) -> float:
        """The step with its gaps, over the step without."""
        return self.recorded_s / self.needed_s if self.needed_s else 1.0


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
