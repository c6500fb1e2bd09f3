"""A training job in a few lines, with faults that can be planted: its traces, and how long it truly takes.

    for each layer   host: launch ─► GPU: kernels ─► collective of all ranks, after the kernels

The simulation is the truth: a fault's gain is the time of the job with it over the time without.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LATENCY = 6  # microseconds from a launch call's begin to its kernel on an idle GPU
COMPUTE, COMMUNICATION = 7, 20  # streams


@dataclass(frozen=True)
class Job:
    """A data-parallel job; times in microseconds.

    `overlap`: kernels of the next layer don't wait for this layer's collective. `host_of`, `compute_of`:
    factors of single ranks. `sync`: the host waits for the GPU after every layer. `skew`: by how much each
    rank's clock is ahead.
    """

    ranks: int = 4
    steps: int = 3
    layers: int = 12
    kernels: int = 6
    kernel: float = 120.0
    host: float = 25.0
    collective: float = 150.0
    data: float = 0.0
    sync: bool = False
    overlap: bool = False
    host_of: dict[int, float] = field(default_factory=dict)
    compute_of: dict[int, float] = field(default_factory=dict)
    skew: tuple[float, ...] = ()

    def without(self, **changes: Any) -> Job:
        """The job with some of it changed."""
        return replace(self, **changes)


# What `scalewright diagnose example` reads: rank 2 computes a third slower, clocks differ by up to 0.3 ms.
EXAMPLE = Job(
    layers=8, steps=2, kernel=90.0, host=12.0, compute_of={2: 1.35}, skew=(0.0, 300.0, -200.0, 50.0)
)


class _Rank:
    """One rank's clocks and events."""

    def __init__(self, number: int, job: Job) -> None:
        self.number, self.job = number, job
        self.host = 0.0
        self.free = {COMPUTE: 0.0, COMMUNICATION: 0.0}
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def add(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        skew = self.job.skew[self.number] if self.job.skew else 0.0
        stream = args.get("stream", 0)
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 100,
            "tid": stream if category == "kernel" else 1, "ts": round(1000 + start + skew, 3),
            "dur": round(length, 3), "args": args,
        })  # fmt: skip

    def call(self, what: str = "cudaLaunchKernel") -> int:
        """A launch; returns its correlation."""
        cost = self.job.host * self.job.host_of.get(self.number, 1.0)
        self.correlation += 1
        self.add("cpu_op", "aten::mm", self.host, cost, **{"External id": self.correlation})
        self.add("cuda_runtime", what, self.host + cost - 5, 5, correlation=self.correlation)
        self.host += cost
        return self.correlation

    def kernel(self, name: str, length: float, stream: int, ready: float = 0.0) -> None:
        correlation = self.call()
        start = max(self.host - 5 + LATENCY, self.free[stream], ready)
        self.add("kernel", name, start, length, stream=stream, device=0, correlation=correlation)
        self.free[stream] = start + length


def simulate(job: Job) -> tuple[list[list[dict[str, Any]]], float]:
    """Events of each rank, and microseconds from the first kernel's start to the last one's end."""
    ranks = [_Rank(number, job) for number in range(job.ranks)]
    begun = [0.0] * job.ranks
    for step in range(job.steps):
        for rank in ranks:
            begun[rank.number] = rank.host
            if job.data:
                name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
                rank.add("user_annotation", name, rank.host, job.data)
                rank.host += job.data
        for _ in range(job.layers):
            for rank in ranks:
                for _ in range(job.kernels):
                    length = job.kernel * job.compute_of.get(rank.number, 1.0)
                    ready = 0.0 if job.overlap else rank.free[COMMUNICATION]
                    rank.kernel("ampere_bf16_s16816gemm", length, COMPUTE, ready)
            _all_reduce(ranks, job)
            for rank in ranks:
                if job.sync:
                    end = max(rank.host + 10, *rank.free.values()) + 3
                    rank.add("cuda_runtime", "cudaStreamSynchronize", rank.host, end - rank.host)
                    rank.host = end
        for rank in ranks:
            rank.add(
                "user_annotation", f"ProfilerStep#{step}", begun[rank.number], rank.host - begun[rank.number]
            )
    gpu = [event for rank in ranks for event in rank.events if event["cat"] == "kernel"]
    skew = job.skew or (0.0,) * job.ranks
    start = min(e["ts"] - skew[r.number] for r in ranks for e in r.events if e["cat"] == "kernel")
    end = max(e["ts"] + e["dur"] - skew[r.number] for r in ranks for e in r.events if e["cat"] == "kernel")
    assert gpu
    return [rank.events for rank in ranks], end - start


def _all_reduce(ranks: list[_Rank], job: Job) -> None:
    """Launches the collective on every rank; it ends on all when the last one has come and sent."""
    starts = []
    for rank in ranks:
        correlation = rank.call()
        start = max(rank.host - 5 + LATENCY, *rank.free.values())
        starts.append((rank, correlation, start))
    end = max(start for *_, start in starts) + job.collective
    for rank, correlation, start in starts:
        rank.add(
            "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", start, end - start,
            stream=COMMUNICATION, device=0, correlation=correlation,
            **{"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
               "dtype": "BFloat16", "Group size": job.ranks, "Process Group Name": "0",
               "Process Group Description": "default_pg", "Process Group Ranks": str([*range(job.ranks)])},
        )  # fmt: skip
        rank.free[COMMUNICATION] = end


def write(job: Job, folder: Path) -> float:
    """Writes a gzipped trace a rank, as PyTorch's profiler does; returns the job's true microseconds."""
    events, length = simulate(job)
    for rank, own in enumerate(events):
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks},
            "traceEvents": own,
            "traceName": f"rank{rank}.json",
        }
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(
            gzip.compress(json.dumps(document).encode(), 9, mtime=0)
        )
    return length
