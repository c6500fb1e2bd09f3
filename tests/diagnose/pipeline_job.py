"""A pipeline of stages, one rank each, in 1F1B's order: its traces, and how long it truly takes.

    stage 0   F0 ─ F1 ─ ...            sends an activation ─►
    stage 1     └► F0 ─ B0 ─ F1 ─ ...  ◄─ sends a gradient      ends once both have come

Messages of each direction have a stream of their own, sent and received ones too, as a pipeline's must have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.diagnose.job import COMPUTE, GEMM, LATENCY, Rank, length, write_traces

RECEIVES, SENDS = {"F": 20, "B": 21}, {"F": 22, "B": 23}  # streams
Message = tuple[str, int, int]  # F or B, the micro-batch, the stage that sends


@dataclass(frozen=True)
class PipelineJob:
    """Times in microseconds; `kernels_of`: kernels of each stage's forward, a backward has twice as many."""

    kernels_of: tuple[int, ...] = (8, 8, 8, 8)
    micro_batches: int = 8
    steps: int = 2
    kernel: float = 120.0
    host: float = 12.0
    message: float = 60.0
    elements: int = 1 << 22  # of bfloat16 in a message
    jitter: float = 0.0
    slow: dict[int, float] = field(default_factory=dict)  # factors of single stages' kernels

    @property
    def ranks(self) -> int:
        """One a stage."""
        return len(self.kernels_of)


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that remain."""
    warm = min(stages - 1 - stage, micro_batches)
    order = [("F", number) for number in range(warm)]
    for number in range(warm, micro_batches):
        order += [("F", number), ("B", number - warm)]
    return order + [("B", number) for number in range(micro_batches - warm, micro_batches)]


def simulate_pipeline(job: PipelineJob) -> tuple[list[list[dict[str, Any]]], float]:
    """Events of each rank, and microseconds from the first kernel's start to the last one's end."""
    ranks = [Rank(number, job.host, jitter=job.jitter) for number in range(job.ranks)]
    for rank in ranks:
        rank.free |= dict.fromkeys((*RECEIVES.values(), *SENDS.values()), 0.0)
    for step in range(job.steps):
        begun = [rank.host for rank in ranks]
        _Step(job, ranks).run()
        for rank, begin in zip(ranks, begun, strict=True):
            rank.add("user_annotation", f"ProfilerStep#{step}", begin, rank.host - begin)
    return [rank.events for rank in ranks], length(ranks)


def write_pipeline(job: PipelineJob, folder: Path) -> float:
    """Writes a trace a rank; returns the job's true microseconds."""
    events, took = simulate_pipeline(job)
    write_traces(events, folder)
    return took


@dataclass
class _Step:
    """Messages that were sent and not received yet: correlation of the send's launch, its earliest start."""

    job: PipelineJob
    ranks: list[Rank]
    sent: dict[Message, tuple[int, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Every rank's actions in its order, each once its message was sent."""
        stages = len(self.ranks)
        left = [one_f_one_b(stage, stages, self.job.micro_batches) for stage in range(stages)]
        while any(left):
            for stage, actions in enumerate(left):
                while actions and self._act(stage, *actions[0]):
                    actions.pop(0)

    def _act(self, stage: int, kind: str, number: int) -> bool:
        """Receives, computes, sends; False where nothing was sent yet."""
        rank, onward = self.ranks[stage], 1 if kind == "F" else -1
        ready = 0.0
        if 0 <= stage - onward < len(self.ranks):
            if (kind, number, stage - onward) not in self.sent:
                return False
            ready = self._receive((kind, number, stage - onward), rank)
        for _ in range(self.job.kernels_of[stage] * (1 if kind == "F" else 2)):
            rank.kernel(GEMM, self.job.kernel * self.job.slow.get(stage, 1.0), COMPUTE, ready)
        if 0 <= stage + onward < len(self.ranks):
            correlation = rank.call()
            self.sent[kind, number, stage] = correlation, max(rank.host - 5 + LATENCY, rank.free[COMPUTE])
        return True

    def _receive(self, message: Message, rank: Rank) -> float:
        """Ends the message on both of its ranks; returns when."""
        kind, _, source = message
        sender, (launch, earliest) = self.ranks[source], self.sent.pop(message)
        correlation = rank.call()
        begun = max(rank.host - 5 + LATENCY, rank.free[RECEIVES[kind]])
        sends = max(earliest, sender.free[SENDS[kind]])
        end = max(begun, sends) + self.job.message
        self._kernel(sender, "send", SENDS[kind], sends, end, launch, {"Dst Rank": rank.number})
        self._kernel(rank, "recv", RECEIVES[kind], begun, end, correlation, {"Src Rank": source})
        return end

    def _kernel(
        self, rank: Rank, name: str, stream: int, start: float, end: float, launch: int, peer: dict[str, int]
    ) -> None:
        rank.free[stream] = end
        rank.add(
            "kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", start, end - start,
            stream=stream, device=0, correlation=launch,
            **{"Collective name": name, "In msg nelems": self.job.elements,
               "Out msg nelems": self.job.elements, "dtype": "BFloat16", "Group size": self.job.ranks,
               "Process Group Name": "1", "Process Group Description": "mesh_pp",
               "Process Group Ranks": str([*range(self.job.ranks)]), **peer},
        )  # fmt: skip
