"""Our trainer in segments: the real loop, step, reader, record and files; only where a segment ends is ours.

    train(run) ──► builds everything ──► loop(job) is caught here; the job is then run a few steps at a time

A segment makes a new reader, whose thread starts cold: its first batch is not read ahead, so that no work of
ours is done while another contestant is timed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from scalewright.api import train
from scalewright.spec.run import RunSpec
from scalewright.spec.text.jsonl import read_jsonl
from scalewright.train import session
from scalewright.train.batches import StepBatches
from scalewright.train.loop import Job, loop
from scalewright.train.record.record import Record
from scalewright.train.signals import StopRequest


class Ours:
    """A run of `scalewright train` that stops and goes on without a save between."""

    def __init__(self, run: RunSpec, name: str = "scalewright") -> None:
        self.name = name
        self.job = catch(run)
        assert self.job.record is not None
        self.spec, self.step, self.record = self.job.run, self.job.step, self.job.record
        self.place = self.job.batches.place
        precision = str(self.spec.layout.precision)
        self.precision = "bf16: fp32 masters, bf16 copies" if precision == "bf16" else precision
        self.seq_len = run.data.seq_len if hasattr(run.data, "seq_len") else 0

    def run(self, steps: int) -> list[float]:
        """The next steps; their losses are read back from metrics.jsonl."""
        self.segment(steps)
        rows = read_jsonl(self.spec.folder / "metrics.jsonl")
        return [row["loss"] for row in rows[-steps:]]

    def segment(self, steps: int) -> None:
        """The same, and nothing else."""
        job, last = self.job, self.place.step + steps
        model = self.step.parallel.model
        batches = StepBatches(job.batches.dataset, self.spec.layout, self.step.mesh, model, self.place, last)
        try:
            loop(replace(job, batches=batches, first=self.place.step + 1, last=last), StopRequest())
        finally:
            batches.close()
        self.place = self.place.after(last, self.spec.layout.global_batch, self.seq_len)

    def close(self) -> None:
        """Ends the record."""
        self.record.close("finished", self.place.step, 0.0)


class _Caught(Exception):
    """The loop was about to begin."""


def catch(run: RunSpec) -> Job:
    """The job that `train` would loop over, with its record open."""
    jobs: list[Job] = []

    def here(job: Job, *arguments: Any) -> Any:
        jobs.append(job)
        raise _Caught

    threads = torch.get_num_threads()
    with mock.patch.object(session, "loop", here), mock.patch.object(Record, "close"), suppress(_Caught):
        train(run, quiet=True)
    torch.set_num_threads(threads)  # `train` takes OMP_NUM_THREADS; everyone here has the same
    return jobs[0]
