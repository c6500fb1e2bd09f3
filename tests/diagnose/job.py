"""A training job in a few lines, with faults that can be planted: its traces, and how long it truly takes.

    for each layer   host: launch ─► GPU: kernels ─► collective of all ranks, after the kernels

The simulation is the truth: a fault's gain is the time of the job with it over the time without.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LATENCY = 6  # microseconds from a launch call's begin to its kernel on an idle GPU
COMPUTE, COMMUNICATION = 7, 20  # streams
GEMM = "ampere_bf16_s16816gemm"


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
    elements: int = 1 << 23  # of bfloat16 in a collective
    data: float = 0.0
    sync: bool = False
    overlap: bool = False
    host_of: dict[int, float] = field(default_factory=dict)
    compute_of: dict[int, float] = field(default_factory=dict)
    skew: tuple[float, ...] = ()
    jitter: float = 0.0  # of the logarithm of every kernel's and launch's length

    def without(self, **changes: Any) -> Job:
        """The job with some of it changed."""
        return replace(self, **changes)


# What `scalewright diagnose example` reads: rank 2 computes a third slower, clocks differ by up to 0.3 ms.
EXAMPLE = Job(layers=8, steps=2, kernel=90.0, host=12.0, compute_of={2: 1.35}, skew=(0.0, 300.0, -200.0, 50.0))


class Rank:
    """One rank's clocks and events; `launch`: its host's microseconds a launch, `ahead`: its clock is."""

    def __init__(self, number: int, launch: float, ahead: float = 0.0, jitter: float = 0.0) -> None:
        self.number, self.launch, self.ahead = number, launch, ahead
        self.noise, self.jitter = random.Random(number), jitter
        self.host = 0.0
        self.free = {COMPUTE: 0.0, COMMUNICATION: 0.0}
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def add(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        stream = args.get("stream", 0)
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 100,
            "tid": stream if category == "kernel" else 1, "ts": round(1000 + start + self.ahead, 3),
            "dur": round(length, 3), "args": args,
        })  # fmt: skip

    def vary(self) -> float:
        """A factor around 1."""
        return math.exp(self.jitter * self.noise.gauss(0, 1)) if self.jitter else 1.0

    def call(self, what: str = "cudaLaunchKernel") -> int:
        """A launch; returns its correlation."""
        cost = self.launch * self.vary()
        self.correlation += 1
        self.add("cpu_op", "aten::mm", self.host, cost, **{"External id": self.correlation})
        self.add("cuda_runtime", what, self.host + cost - 5, 5, correlation=self.correlation)
        self.host += cost
        return self.correlation

    def kernel(self, name: str, length: float, stream: int, ready: float = 0.0) -> None:
        correlation = self.call()
        start = max(self.host - 5 + LATENCY, self.free[stream], ready)
        length *= self.vary()
        self.add("kernel", name, start, length, stream=stream, device=0, correlation=correlation)
        self.free[stream] = start + length


def simulate(job: Job) -> tuple[list[list[dict[str, Any]]], float]:
    """Events of each rank, and microseconds from the first kernel's start to the last one's end."""
    ranks = [
        Rank(number, job.host * job.host_of.get(number, 1.0), ahead(job, number), job.jitter)
        for number in range(job.ranks)
    ]
    begun = [0.0] * job.ranks
    for step in range(job.steps):
        for rank in ranks:
            begun[rank.number] = rank.host
            if job.data:
                name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
                rank.add("user_annotation", name, rank.host, job.data)
                rank.host += job.data
        for layer in range(job.layers):
            for rank in ranks:
                for _ in range(job.kernels):
                    took = job.kernel * job.compute_of.get(rank.number, 1.0)
                    hidden = job.overlap and (layer or not job.jitter)
                    rank.kernel(GEMM, took, COMPUTE, 0.0 if hidden else rank.free[COMMUNICATION])
            _all_reduce(ranks, job)
            for rank in ranks:
                if job.sync:
                    end = max(rank.host + 10, *rank.free.values()) + 3
                    rank.add("cuda_runtime", "cudaStreamSynchronize", rank.host, end - rank.host)
                    rank.host = end
        for rank in ranks:
            rank.add("user_annotation", f"ProfilerStep#{step}", begun[rank.number], rank.host - begun[rank.number])
    return [rank.events for rank in ranks], length(ranks)


def ahead(job: Job, rank: int) -> float:
    """Microseconds by which a rank's clock is ahead."""
    return job.skew[rank] if job.skew else 0.0


def length(ranks: list[Rank]) -> float:
    """Microseconds from the first kernel's start to the last one's end, by a clock that all share."""
    kernels = [(r, event) for r in ranks for event in r.events if event["cat"] == "kernel"]
    start = min(event["ts"] - rank.ahead for rank, event in kernels)
    return float(max(event["ts"] + event["dur"] - rank.ahead for rank, event in kernels) - start)


def _all_reduce(ranks: list[Rank], job: Job) -> None:
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
            **{"Collective name": "allreduce", "In msg nelems": job.elements, "Out msg nelems": job.elements,
               "dtype": "BFloat16", "Group size": job.ranks, "Process Group Name": "0",
               "Process Group Description": "default_pg", "Process Group Ranks": str([*range(job.ranks)])},
        )  # fmt: skip
        rank.free[COMMUNICATION] = end


def write(job: Job, folder: Path) -> float:
    """Writes a gzipped trace a rank, as PyTorch's profiler does; returns the job's true microseconds."""
    events, took = simulate(job)
    write_traces(events, folder)
    return took


def write_traces(events: list[list[dict[str, Any]]], folder: Path) -> None:
    """A file for each rank's events."""
    for rank, some in enumerate(events):
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(events)},
            "traceEvents": some,
            "traceName": f"rank{rank}.json",
        }
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), 9, mtime=0))
