"""Our trainer, in segments: the real loop, step, reader, record and files; only the segment's end is ours to choose.

A segment makes a new reader, whose thread starts cold: the first batch of a segment is not read ahead, so that
no work of ours is done while another contestant is timed.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from scalewright.data.dataset import open_data
from scalewright.parallel.mesh import make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.track.metrics import read_metrics
from scalewright.train.batches import StepBatches
from scalewright.train.loop import Job, loop
from scalewright.train.loss import build_loss
from scalewright.train.network import build_network, first_weights, load_python
from scalewright.train.optimizer import base_rate, build_optimizer
from scalewright.train.precision import Peak
from scalewright.train.resolve import resolve
from scalewright.train.scribe import open_record
from scalewright.train.signals import StopRequest
from scalewright.train.step import Step


class Ours:
    """A run of `scalewright train` that stops and goes on without a save between."""

    def __init__(self, run: RunSpec, name: str = "scalewright") -> None:
        self.name = name
        resolved = resolve(run)
        self.spec = run = resolved.run
        self.precision = f"{run.layout.precision}" + (
            ": fp32 masters, bf16 copies" if run.layout.precision == "bf16" else ""
        )
        assert isinstance(run.optimizer, OptimizerSpec)
        mesh = make_mesh(make_grid(run.layout, None), 0, torch.device("cpu"))
        network = build_network(run, mesh, bf16=run.layout.precision == "bf16")
        self.parallel = network.parallel
        optimizer = build_optimizer(run.optimizer, network.parallel.weights, load_python)
        first_weights(run, network)
        self.dataset = open_data(run.data, "train", run.seed)
        peak = Peak(1e12, "assumed", "cpu")  # MFU is not looked at here
        self.record = open_record(resolved, run, peak, network, 0, "comparison", [], quiet=True)
        loss = build_loss(run.loss, run.train.z_loss, load_python)
        self.step = Step(network.parallel, optimizer, loss, mesh, run.optimizer.clip_norm)
        self.job = Job(
            run=run,
            step=self.step,
            batches=self._batches(1, 1),
            record=self.record,
            save=_never,
            validate=_never,
            first=1,
            last=1,
            total=resolved.steps,
            base_rate=base_rate(run.optimizer, optimizer),
        )
        self.job.batches.close()
        self.done = 0

    def run(self, steps: int) -> list[float]:
        """The next steps; their losses are read back from metrics.jsonl."""
        self.segment(steps)
        rows = read_metrics(self.spec.folder / "metrics.jsonl")
        return [row["loss"] for row in rows[-steps:]]

    def segment(self, steps: int) -> None:
        """The same, and nothing else."""
        first, last = self.done + 1, self.done + steps
        batches = self._batches(first, last)
        try:
            loop(replace(self.job, batches=batches, first=first, last=last), StopRequest())
        finally:
            batches.close()
        self.done = last

    def close(self) -> None:
        """Ends the record."""
        self.record.close("finished", self.done, 0.0)

    def _batches(self, first: int, last: int) -> StepBatches:
        return StepBatches(self.dataset, self.spec.layout, self.step.mesh, self.parallel.model, first, last)


def _never(step: int) -> None:
    raise AssertionError("a comparison neither saves nor validates")
