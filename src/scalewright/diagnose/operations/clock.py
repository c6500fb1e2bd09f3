"""When every operation begins and ends, with the recorded durations or others: the what-if's clock.

    begin(operation) = max(end of what it waits for)
    end(work)        = begin + duration
    end(collective)  = max over those in it of begin + transfer

All steps and replicas are computed at a time, as arrays [steps, replicas]; a step begins at 0. The gaps
between what an operation waits for and its start (the host's work, mostly) are left out, as in the paper.
"""

from __future__ import annotations

import numpy as np

from scalewright.diagnose.operations.kinds import kind_of
from scalewright.diagnose.operations.order import Order
from scalewright.diagnose.operations.table import Table


def durations(table: Table, order: Order) -> np.ndarray:
    """Seconds that each operation needs by itself: of collectives the transfer, after the last one came.

    float64 [operations, steps, replicas].
    """
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
