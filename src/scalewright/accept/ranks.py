"""The processes of an acceptance, which all do the same checks in the same order.

alone            this process; it starts local ones to measure, and `train` starts its own
torchrun, srun   every rank; a Gloo group between them carries answers, and waits while children train
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from scalewright.accept.hardware import HardwareJob, measured, take
from scalewright.bench.world import PRELOAD, joined
from scalewright.launch.in_every_rank import Child
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.launch.rendezvous import free_port

PATIENCE = timedelta(hours=2)  # of ranks that wait for another one's check


class Ranks:
    """All of them, seen from one."""

    def __init__(self, context: RankContext, device: str, processes: int) -> None:
        self.context, self.device = context, device
        self.processes = processes if context.alone else context.world
        self._stack = ExitStack()
        self._place: Any = None
        self._control: Any = None
        if not context.alone:
            import torch.distributed as dist

            self._place = self._stack.enter_context(joined(context, device))
            self._control = dist.new_group(backend="gloo", timeout=PATIENCE)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def lead(self) -> bool:
        """Whether this is the rank that decides and writes."""
        return self.context.rank == 0

    @property
    def last(self) -> bool:
        """Whether this is the rank whose child is killed."""
        return self.context.rank == self.context.world - 1

    def measure(self, job: HardwareJob) -> dict[str, Any]:
        """The figures of every device, pair and axis; the same on each rank."""
        if not self.context.alone:
            return take(self.context, job, self._place)
        answer: dict[str, object] = run_local(measured, (job,), self.processes, preload=PRELOAD, import_main=False)
        return answer

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on each of them."""
        if self.context.alone:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.context.world
        dist.all_gather_object(values, value, group=self._control)
        return values

    def share(self, value: Any) -> Any:
        """Rank 0's value."""
        return self.gather(value)[0]

    def start(self, arguments: Sequence[str], log: Path) -> Child:
        """`scalewright ARGUMENTS` on every rank, together a world at a free port of rank 0's host."""
        port = self.share(free_port() if self.lead else None)
        return Child(self.context, port, arguments, log.with_name(f"{log.stem}-{self.context.rank}.log"))
