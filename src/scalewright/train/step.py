"""One optimizer step, the same for every layout.

    the executor            micro-batches: logits -> loss sum / tokens of the global batch -> backward
    gradients are sums      over micro-batches and ranks; nothing divides them again
    norm                    of local shards, weighted by copies; one all-reduce carries the loss, too
    clip, update, publish   on local fp32 weights

No value leaves the device: the step gives one small tensor, and whoever wants numbers reads it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.sums import sum_partial
from scalewright.train.memory import memory_gib

# What a step reports, in this order, as one fp32 tensor. Behind these stands each rank's memory in GiB: in a
# sum, a place of its own for every rank is what lets the reader take the largest.
LOSS, AUX, NORM, TOKENS, STOP = range(5)
MEMORY = 5


@dataclass
class Step:
    """Runs steps; holds what they share."""

    parallel: Parallel
    optimizer: torch.optim.Optimizer
    loss: Loss
    mesh: Mesh
    clip_norm: float  # 0: no clipping
    # Whether to look at the norm, and leave out a clip that changes nothing: where that costs less than the
    # clip's pass over memory. Null: on a CPU, since elsewhere the host would wait for the device.
    look: bool | None = None

    def __post_init__(self) -> None:
        shares = [1.0 / weight.copies for weight in self.parallel.weights.trained()]
        self._shares = torch.tensor(shares, device=self.mesh.device)  # of each squared norm, this rank's part
        if self.look is None:
            self.look = self.mesh.device.type == "cpu"

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: bool = False) -> Tensor:
        """Trains on this rank's micro-batches; fp32[5 + world]: loss, auxiliary loss, gradient norm, tokens,
        stop, and the memory of every rank in GiB.

        `counted` is this rank's number of counted tokens, a scalar on the device. Loss is in nats per counted
        token of the global batch, before the update; the norm is that before clipping. `stop` is above 0
        when any rank was asked to stop.
        """
        report = torch.zeros(MEMORY + self.mesh.world, device=self.mesh.device)
        tokens = all_sum(counted.to(torch.float32, copy=True), self.mesh, "loss")
        divisor = tokens.clamp(min=1.0)  # a batch without a counted token teaches nothing, and breaks nothing
        with self.mesh.timers.phase("compute"):
            losses = self.parallel.executor.train(micros, self.loss, divisor)
        report[LOSS : AUX + 1] = losses / self.mesh.size("tp")  # whose ranks all have the same
        report[STOP] = float(stop)
        with self.mesh.timers.phase("optimizer"):
            self._update(report)
        report[TOKENS] = tokens
        return report

    @torch.no_grad()
    def _update(self, report: Tensor) -> None:
        weights = self.parallel.weights
        gradients = weights.take_gradients()
        sum_partial(weights, gradients, self.mesh)
        norms = torch.stack(torch._foreach_norm(gradients)).to(report.device)  # offloaded ones lie elsewhere
        report[NORM] = (norms.square() * self._shares).sum()
        report[MEMORY + self.mesh.rank] = memory_gib(self.mesh.device)
        all_sum(report, self.mesh, "world")
        report[NORM] = report[NORM].sqrt()
        if self.clip_norm > 0:
            factor = (self.clip_norm / (report[NORM] + 1e-6)).clamp(max=1.0)
            if not self.look or factor < 1:
                torch._foreach_mul_(gradients, factor.to(gradients[0].device))
        weights.hand_over(gradients)
        self.optimizer.step()
        weights.publish()
