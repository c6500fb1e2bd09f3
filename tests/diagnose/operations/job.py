"""A pipeline's 1F1B step as a table of operations, with faults that can be planted, and its true length.

The clock here is written apart from the one that is tested: it runs each worker's list of operations, and
knows of no graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

FORWARD_S, BACKWARD_S, TRANSFER_S, SYNC_S = 0.1, 0.2, 0.001, 0.01


@dataclass(frozen=True)
class Job:
    """`slow`: factors of workers (stage, replica). `longest`: factor of the last stage. `uneven`: spread of
    the micro-batches. `noise`: of every compute.
    """

    stages: int = 4
    replicas: int = 2
    micro_batches: int = 8
    steps: int = 3
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    longest: float = 1.0
    uneven: float = 0.0
    noise: float = 0.002


def rows(job: Job) -> tuple[list[dict[str, Any]], float]:
    """The table's rows, and the mean step in seconds."""
    random = np.random.default_rng(1)
    table: list[dict[str, Any]] = []
    lengths = []
    for step in range(job.steps):
        size = 1 + job.uneven * random.random((job.replicas, job.micro_batches))
        ends = []
        for replica in range(job.replicas):
            ends.append(_replica(job, step, replica, size[replica], random, table))
        lengths.append(_after(job, step, ends, table))
    return table, float(np.mean(lengths))


def schedule(job: Job, stage: int) -> list[tuple[str, int]]:
    """1F1B: as many forwards as stages follow, then one backward for each forward."""
    ahead = min(job.stages - stage - 1, job.micro_batches)
    order = [("forward", number) for number in range(ahead)]
    for number in range(job.micro_batches):
        if number + ahead < job.micro_batches:
            order.append(("forward", number + ahead))
        order.append(("backward", number))
    return order


def _replica(
    job: Job, step: int, replica: int, size: np.ndarray, random: np.random.Generator, table: list[Any]
) -> list[float]:
    """Runs one replica's stages; returns when each is done computing."""
    lists = [schedule(job, stage) for stage in range(job.stages)]
    done: dict[tuple[str, int, int], float] = {}  # the end of a compute
    free = [SYNC_S] * job.stages
    for stage in range(job.stages):
        _row(table, replica, stage, step, "params-all-gather", 0.0, SYNC_S, 0, mc=0)
    while any(lists):
        for stage in range(job.stages):
            while lists[stage]:
                way, number = lists[stage][0]
                neighbour = stage + (-1 if way == "forward" else 1)
                inner = 0 <= neighbour < job.stages
                if inner and (way, neighbour, number) not in done:
                    break
                lists[stage].pop(0)
                begin = free[stage]
                if inner:
                    sent = done[way, neighbour, number]
                    end = max(begin, sent) + TRANSFER_S
                    _row(table, replica, stage, step, f"{way}-recv", begin, end, number)
                    _row(table, replica, neighbour, step, f"{way}-send", sent, end, number)
                    begin = end
                length = (FORWARD_S if way == "forward" else BACKWARD_S) * size[number]
                length *= job.slow.get((stage, replica), 1.0) * (1 + job.noise * random.random())
                length *= job.longest if stage == job.stages - 1 else 1.0
                _row(table, replica, stage, step, f"{way}-compute", begin, begin + length, number,
                     mc=0, mb_id=number, gmc=stage)  # fmt: skip
                free[stage] = done[way, stage, number] = begin + length
    return free


def _after(job: Job, step: int, ends: list[list[float]], table: list[Any]) -> float:
    """Reduction over replicas, the norm over all, the optimizer; returns the step's length."""
    reduced = {}
    for stage in range(job.stages):
        end = max(free[stage] for free in ends) + SYNC_S
        for replica in range(job.replicas):
            _row(table, replica, stage, step, "grads-reduce-scatter", ends[replica][stage], end, 0, mc=0)
        reduced[stage] = end
    last = max(reduced.values()) + SYNC_S
    for stage in range(job.stages):
        for replica in range(job.replicas):
            _row(table, replica, stage, step, "optimizer-clip-main-grad", reduced[stage], last, 0)
            _row(table, replica, stage, step, "optimizer", last, last + SYNC_S, 0)
    return last + SYNC_S


def _row(table: list[Any], replica: int, stage: int, step: int, optype: str, start: float, end: float,
         seq_id: int, mc: int = -1, mb_id: int = -1, gmc: int = -1) -> None:  # fmt: skip
    table.append({
        "dp_rank": replica, "stage": stage, "rank": replica * 100 + stage, "step": step + 5, "optype": optype,
        "start_ts": start, "duration": end - start, "seq_id": seq_id, "mc": mc, "mb_id": mb_id, "gmc": gmc,
    })  # fmt: skip


def write(job: Job, path: Path) -> float:
    """Writes the table; returns the mean step in seconds."""
    table, length = rows(job)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    return length
