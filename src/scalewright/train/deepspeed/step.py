"""One optimizer step by DeepSpeed's engine, with the report that the loop, records and guard read.

micro-batches -> DeepSpeed: reduce, norm, clip, update       runners.py
loss, tokens, memory, stop      one all-reduce of ours       train/columns.py
norm before clipping            DeepSpeed's; under ZeRO 0, which keeps none, of the reduced gradients
a norm that isn't finite        no update, by either; the guard counts such steps as ever
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.train.clipping import squared_norms
from scalewright.train.columns import AUX, LOSS, MEMORY, NORM, STOP, TOKENS, WIDTH
from scalewright.train.deepspeed.initialize import off_stdout
from scalewright.train.deepspeed.runners import Piped, Whole, watch_updates
from scalewright.train.guard.decide import Guard
from scalewright.train.memory.usage import memory_gib


class DeepSpeedStep:
    """Runs steps; what it is called with and returns is that of `train/step.py`."""

    balance = None  # of experts, which run in this tool's own engine

    def __init__(
        self, runner: Whole | Piped, parallel: Parallel, mesh: Mesh, stage: int, loss: Loss, guard: Guard
    ) -> None:
        """`stage`: of ZeRO."""
        self.runner, self.parallel, self.mesh, self.loss, self.guard = runner, parallel, mesh, loss, guard
        self.engine: Any = runner.engine
        self.optimizer: torch.optim.Optimizer = self.engine.basic_optimizer
        self._norm = torch.zeros((), device=mesh.device)
        if stage == 0:
            watch_updates(self.engine, self._look)
        self._stage = stage

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: int = 0) -> Tensor:
        """Trains on this rank's micro-batches; [WIDTH + world], as `train/columns.py` has it."""
        mesh = self.mesh
        report = torch.zeros(WIDTH + mesh.world, device=mesh.device)
        tokens = all_sum(counted.to(torch.int64, copy=True), mesh, "loss")
        divisor = tokens.clamp(min=1).to(torch.float32)
        with off_stdout():
            with mesh.timers.phase("compute"):
                report[LOSS : AUX + 1] = self.runner.train(micros, self.loss, divisor)
            with mesh.timers.phase("optimizer"):
                self.runner.update()
        self.parallel.buffers.share()
        report[STOP] = stop
        report[MEMORY + mesh.rank] = memory_gib(mesh.device)
        local = self.guard.note_local(report)
        all_sum(report, mesh, mesh.together)
        report[NORM] = self._norm if self._stage == 0 else float(self.engine.get_global_grad_norm())
        self.guard.judge(report, local, 0.0)
        exact = report.double()
        exact[TOKENS] = tokens
        return exact

    @torch.no_grad()
    def _look(self) -> bool:
        """Takes the norm of the reduced gradients; whether it is finite."""
        weights = [weight for weight in self.parallel.weights.trained() if weight.compute.grad is not None]
        shares = torch.tensor([1.0 / weight.copies for weight in weights], device=self.mesh.device)
        gradients = [weight.compute.grad for weight in weights if weight.compute.grad is not None]
        total = (squared_norms(gradients) * shares).sum()
        self._norm = all_sum(total, self.mesh, "world").sqrt()
        return bool(torch.isfinite(self._norm))
