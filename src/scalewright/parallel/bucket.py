"""Buckets of gradients, and how they are summed over the ranks that hold the same weights.

    AllReduce    one message a bucket, waited for at the step's end
    Staged       several, with computation between them (replicate.py, power_sgd.py): one bucket's beside
                 the next one's, in one order on all ranks

        bucket 0 full   send A0
        bucket 1 full   send A1       A0 is there: compute, send B0
        bucket 2 full   send A2       B0 is there: the sum      A1 is there: compute, send B1
        step's end                    the rest

The host doesn't wait for a GPU: the stream does. On a CPU the host waits for a message that has had the time
of a bucket's backward to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.timers import Timers
from scalewright.parallel.weights import Weight


@dataclass
class Bucket:
    """A flat fp32 buffer of some weights' gradients, of one stage."""

    stage: int
    group: dist.ProcessGroup | None
    buffer: Tensor
    members: list[Weight]
    views: list[Tensor] = field(default_factory=list)  # every parameter's part of it,
    untouched: list[bool] = field(default_factory=list)  # and whether the step has yet to add its gradient
    waiting: int = 0  # parameters that the current backward has yet to reach


class Reduction(Protocol):
    """Sums full buckets in place."""

    def start(self, bucket: Bucket) -> None:
        """Begins with a full bucket; all ranks of its group call it for the same buckets in one order."""

    def finish(self) -> None:
        """Every bucket that was started is the sum."""


class AllReduce:
    """fp32, as it lies there (Li et al. 2020 §3.2)."""

    def __init__(self, timers: Timers, axis: str) -> None:
        self.timers, self.axis = timers, axis
        self._handles: list[dist.Work] = []

    def start(self, bucket: Bucket) -> None:
        """Sends a bucket."""
        if bucket.group is not None:
            handle = dist.all_reduce(bucket.buffer, group=bucket.group, async_op=True)
            assert handle is not None
            self._handles.append(handle)

    def finish(self) -> None:
        """Waits for all."""
        with self.timers.comm(self.axis):
            for handle in self._handles:
                handle.wait()
        self._handles.clear()


Stages = Generator[dist.Work, None, None]  # gives each message that it sent, and goes on when that is there


class Staged:
    """Runs the stages of buckets beside each other."""

    def __init__(self, stages: Callable[[Bucket, dist.ProcessGroup], Stages], timers: Timers, axis: str) -> None:
        self.stages, self.timers, self.axis = stages, timers, axis
        self._running: list[tuple[Stages, dist.Work]] = []

    @torch.no_grad()
    def start(self, bucket: Bucket) -> None:
        """Sends a bucket's first message, then goes on with those before it."""
        if bucket.group is None:
            return
        earlier, self._running = self._running, []
        fresh = self.stages(bucket, bucket.group)
        sent = next(fresh)
        self._go_on(earlier)
        self._running.append((fresh, sent))

    @torch.no_grad()
    def finish(self) -> None:
        """Runs all to their ends."""
        while self._running:
            earlier, self._running = self._running, []
            self._go_on(earlier)

    def _go_on(self, earlier: list[tuple[Stages, dist.Work]]) -> None:
        for stages, sent in earlier:
            with self.timers.comm(self.axis):
                sent.wait()
            if (later := next(stages, None)) is not None:
                self._running.append((stages, later))
