"""Our trainer in segments: the real loop, step, reader, record and files; only where a segment ends is ours.

A segment makes a new reader, whose thread starts cold: its first batch is not read ahead, so that no work of
ours is done while another contestant is timed.
"""

from __future__ import annotations

import torch

from scalewright.launch.context import RankContext
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.track.metrics import read_metrics
from scalewright.train.batches import StepBatches
from scalewright.train.loop import Job, loop
from scalewright.train.loss import build_loss
from scalewright.train.network import load_python
from scalewright.train.optimizer import base_rate
from scalewright.train.resolve import resolve
from scalewright.train.signals import StopRequest
from scalewright.train.step import Step
from scalewright.train.worker import _Rank


class Ours:
    """A run of `scalewright train` that stops and goes on without a save between."""

    def __init__(self, run: RunSpec, name: str = "scalewright") -> None:
        self.name = name
        resolved = resolve(run)
        # Everything up to the first step as `train` builds it. Private: nobody else takes a run apart.
        rank = _Rank.prepare(resolved, RankContext(), torch.device("cpu"), True)
        assert isinstance(rank.run.optimizer, OptimizerSpec)
        assert rank.record is not None
        self.rank, self.spec, self.record, self.place = rank, rank.run, rank.record, rank.place
        bf16 = self.spec.layout.precision == "bf16"
        self.precision = "bf16: fp32 masters, bf16 copies" if bf16 else str(self.spec.layout.precision)
        loss = build_loss(run.loss, run.train.z_loss, load_python)
        self.step = Step(rank.network.parallel, rank.optimizer, loss, rank.mesh, rank.run.optimizer.clip_norm)

    def run(self, steps: int) -> list[float]:
        """The next steps; their losses are read back from metrics.jsonl."""
        self.segment(steps)
        rows = read_metrics(self.spec.folder / "metrics.jsonl")
        return [row["loss"] for row in rows[-steps:]]

    def segment(self, steps: int) -> None:
        """The same, and nothing else."""
        rank, last = self.rank, self.place.step + steps
        model = rank.network.parallel.model
        batches = StepBatches(rank.dataset, self.spec.layout, rank.mesh, model, self.place, last)
        job = Job(
            run=self.spec,
            step=self.step,
            batches=batches,
            record=self.record,
            save=_never,
            validate=_never,
            first=self.place.step + 1,
            last=last,
            total=rank.total,
            base_rate=base_rate(self.spec.optimizer, rank.optimizer),
        )
        try:
            loop(job, StopRequest())
        finally:
            batches.close()
        self.place = self.place.after(last, self.spec.layout.batch, rank.seq_len)

    def close(self) -> None:
        """Ends the record."""
        self.record.close("finished", self.place.step, 0.0)


def _never(step: int) -> None:
    raise AssertionError("a comparison neither saves nor validates")
