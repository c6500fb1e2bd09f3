"""Our trainer in segments: the real loop, step, reader, record and files; only where a segment ends is ours.

    train(run) ──► builds everything ──► loop(session) is caught here, and then run a few steps at a time

A segment makes a new reader, whose thread starts cold: its first batch is not read ahead, so that no work of
ours is done while another contestant is timed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

import torch

from scalewright.api import train
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.run import RunSpec
from scalewright.train import worker
from scalewright.train.loop import loop
from scalewright.train.metrics.record import Record
from scalewright.train.session import Session
from scalewright.train.signals import StopRequest


class Ours:
    """A run of `scalewright train` that stops and goes on without a save between."""

    def __init__(self, run: RunSpec, name: str = "scalewright") -> None:
        self.name = name
        self.session = catch(run)
        assert self.session.record is not None
        self.spec, self.step, self.record = self.session.run, self.session.step, self.session.record
        precision = str(self.spec.layout.precision)
        self.precision = "bf16: fp32 masters, bf16 copies" if precision == "bf16" else precision

    def run(self, steps: int) -> list[float]:
        """The next steps; their losses are read back from metrics.jsonl."""
        self.segment(steps)
        rows = read_jsonl(self.spec.folder / "metrics.jsonl")
        return [row["loss"] for row in rows[-steps:]]

    def segment(self, steps: int) -> None:
        """The same, and nothing else."""
        session = self.session
        session.last = session.done + steps
        loop(session, StopRequest())
        batch, seq_len = self.spec.layout.global_batch, session.resolved.seq_len
        session.place = session.place.after(session.done, batch, seq_len)

    def close(self) -> None:
        """Ends the record."""
        self.record.close("finished", self.session.done, 0.0)


class _Caught(Exception):
    """The loop was about to begin."""


def catch(run: RunSpec) -> Session:
    """The session that `train` would loop over, with its record open."""
    sessions: list[Session] = []

    def here(session: Session, *arguments: Any) -> Any:
        sessions.append(session)
        raise _Caught

    threads = torch.get_num_threads()
    with mock.patch.object(worker, "loop", here), mock.patch.object(Record, "close"), suppress(_Caught):
        train(run, quiet=True)
    torch.set_num_threads(threads)  # `train` takes OMP_NUM_THREADS; everyone here has the same
    return sessions[0]
