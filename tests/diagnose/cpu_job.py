"""A training job on CPU processes over Gloo, as `train` and `record` trace it, and how long it truly takes.

    for each layer   operators with Python between them ─► c10d::allreduce_ ─► the main thread waits for Gloo

The simulation is the truth: a fault's gain is the time of the job with it over the time without.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CALL = 20.0  # microseconds of c10d's own operator, which hands the collective to a thread of Gloo's


@dataclass(frozen=True)
class CpuJob:
    """Times in microseconds. `compute_of`, `python_of`: factors of single ranks; `skew`: of their clocks.

    `storm`: operators of 3 us in every layer, 2 us apart; `recorder`: what it costs every operator.
    """

    ranks: int = 2
    steps: int = 2
    layers: int = 5
    operators: int = 10
    operator: float = 200.0
    python: float = 20.0
    transfer: float = 300.0
    data: float = 0.0
    storm: int = 0
    recorder: float = 0.0
    elements: int = -1  # of each collective, in fp32
    compute_of: dict[int, float] = field(default_factory=dict)
    python_of: dict[int, float] = field(default_factory=dict)
    skew: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


def simulate(job: CpuJob) -> tuple[list[dict[str, Any]], float]:
    """A document a rank, and microseconds of all steps."""
    now = [0.0] * job.ranks
    events: list[list[dict[str, Any]]] = [[] for _ in range(job.ranks)]
    entries: list[list[Any]] = [[] for _ in range(job.ranks)]
    number = 0

    def add(rank: int, category: str, name: str, length: float, thread: int = 1, start: float = -1.0) -> None:
        begin = now[rank] if start < 0 else start
        stamp = round(1000 + begin + job.skew[rank], 3)
        events[rank].append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": stamp,
                             "dur": round(length, 3), "args": {}})  # fmt: skip

    for step in range(job.steps):
        begun = [*now]
        for rank in range(job.ranks):
            if job.data:
                add(rank, "user_annotation", "data phase", job.data)
                now[rank] += job.data
        for _ in range(job.layers):
            number += 1
            arrived = []
            for rank in range(job.ranks):
                for _ in range(job.storm):
                    add(rank, "cpu_op", "aten::add", 3.0 + job.recorder)
                    now[rank] += 5.0 + job.recorder
                for _ in range(job.operators):
                    now[rank] += job.python * job.python_of.get(rank, 1.0)
                    length = job.operator * job.compute_of.get(rank, 1.0) + job.recorder
                    add(rank, "cpu_op", "aten::mm", length)
                    now[rank] += length
                add(rank, "cpu_op", "c10d::allreduce_", CALL)
                stamp = int((1000 + now[rank] + job.skew[rank]) * 1000)
                entries[rank].append(
                    [stamp, "gloo:all_reduce", "0", "default_pg", number, job.elements, job.elements, "Float"]
                )
                now[rank] += CALL
                arrived.append(now[rank])
            end = max(arrived) + job.transfer
            for rank in range(job.ranks):
                add(rank, "user_annotation", "gloo:all_reduce", end - arrived[rank], 2, arrived[rank])
                now[rank] = end
        for rank in range(job.ranks):
            add(rank, "user_annotation", f"ProfilerStep#{step}", now[rank] - begun[rank], start=begun[rank])
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": job.ranks, "ranks": [*range(job.ranks)]}
    step = simulate(replace(job, recorder=0.0))[1] if job.recorder else max(now)
    documents = [
        {"step_time_s": step / job.steps / 1e6,
         "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": job.ranks, "pg_config": [group]},
         "axes": {"0": "dp_shard"},
         "collectives": [[5, "gloo:all_reduce", "0", "default_pg", 0], *entries[rank]],
         "traceEvents": events[rank]}
        for rank in range(job.ranks)
    ]  # fmt: skip
    return documents, max(now)


def write(job: CpuJob, folder: Path) -> float:
    """Writes a gzipped trace a rank; returns the job's true microseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    documents, length = simulate(job)
    for rank, document in enumerate(documents):
        (folder / f"rank{rank:05d}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return length
