"""One optimizer step, the same for every layout.

    the executor            micro-batches: logits -> loss sum / tokens of the global batch -> backward
    gradients are sums      over micro-batches and ranks; nothing divides them again
    norm                    of local shards, weighted by copies; one all-reduce carries the loss, too
    guard                   is the update taken? (train/guard/decide.py)
    clip, update, publish   on local fp32 weights
    islands                 the outer step, where one is due (train/diloco.py)

No value leaves the device: the step gives one small tensor, and whoever wants numbers reads it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.sums import sum_partial
from scalewright.spec.guard import GuardSpec
from scalewright.train.balance import Balance
from scalewright.train.clipping import squared_part
from scalewright.train.columns import AUX, BUSIEST, DROPPED, LOSS, MEMORY, NORM, OUTER, STOP, TOKENS, WIDTH
from scalewright.train.diloco import Islands
from scalewright.train.guard.decide import Guard
from scalewright.train.memory.usage import memory_gib
from scalewright.train.update import KeptBuffers, obeys_flag, update_unless


@dataclass
class Step:
    """Runs steps; holds what they share."""

    parallel: Parallel
    optimizer: torch.optim.Optimizer
    loss: Loss
    mesh: Mesh
    clip_norm: float  # 0: no clipping
    # Whether the host looks at the norm: it then leaves out a clip that changes nothing, and an update that
    # isn't to be taken. Null: unless it would have to wait for a GPU, and the update can be left out there.
    look: bool | None = None
    guard: Guard | None = None  # null: one with the defaults of `train.guard`
    balance: Balance | None = None  # of a mixture's experts
    islands: Islands | None = None  # under DiLoCo
    _buffers: KeptBuffers = field(init=False)

    def __post_init__(self) -> None:
        weights, device = self.parallel.weights, self.mesh.device
        shares = [1.0 / weight.copies for weight in weights.trained()]
        self._shares = torch.tensor(shares, device=device)  # of each squared norm, this rank's part
        if self.look is None:
            elsewhere = any(weight.master.device != device for weight in weights)  # masters in host memory
            self.look = device.type != "cuda" or elsewhere or not obeys_flag(self.optimizer)
        if self.guard is None:
            self.guard = Guard(GuardSpec(), device)
        self._buffers = KeptBuffers(self.parallel.model)

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: int = 0) -> Tensor:
        """Trains on this rank's micro-batches; [WIDTH + world], as `train/columns.py` has it.

        `counted` is this rank's number of counted tokens, an int64 scalar on the device. Loss is in nats
        per counted token of the global batch, before the update; the norm is that before clipping. An island
        divides by the tokens of its own part, and the report has means over islands. `stop`: this rank's
        `stop_request`.
        """
        report = torch.zeros(WIDTH + self.mesh.world, device=self.mesh.device)
        tokens = all_sum(counted.to(torch.int64, copy=True), self.mesh, "loss")
        # a batch without a counted token teaches nothing, and breaks nothing
        divisor = tokens.clamp(min=1).to(torch.float32)
        self._buffers.keep()
        with self.mesh.timers.phase("compute"):
            losses = self._losses(micros, divisor)
        report[LOSS : AUX + 1] = losses / self.mesh.size("tp")  # whose ranks all have the same
        report[STOP] = stop
        with self.mesh.timers.phase("optimizer"):
            self._update(report)
        self.parallel.buffers.share()
        exact = report if self.mesh.device.type == "mps" else report.double()
        exact[TOKENS] = tokens
        if self.islands is None:
            return exact
        with self.mesh.timers.phase("optimizer"):
            norm = self.islands.after_step()
        exact = self.islands.merge(exact)
        exact[OUTER] = norm
        return exact

    def _losses(self, micros: Sequence[Micro], divisor: Tensor) -> Tensor:
        """Forwards and backwards; gradients are left scaled (fp16), the losses aren't."""
        assert self.guard is not None
        if self.guard.scale is None:
            return self.parallel.executor.train(micros, self.loss, divisor)
        scale = self.guard.scale.value
        return self.parallel.executor.train(micros, self.loss, divisor / scale) / scale

    @torch.no_grad()
    def _update(self, report: Tensor) -> None:
        """Clips and updates from the gradients that lie there, and completes the step's report."""
        assert self.guard is not None
        weights = self.parallel.weights
        gradients = weights.take_gradients()
        sum_partial(weights, gradients, self.mesh)
        report[NORM] = squared_part(gradients, self._shares)
        report[MEMORY + self.mesh.rank] = memory_gib(self.mesh.device)
        if self.balance is not None:
            report[BUSIEST : DROPPED + 1] = self.balance.count()
        local = self.guard.note_local(report)
        all_sum(report, self.mesh, self.mesh.together)
        report[NORM] = report[NORM].sqrt()
        verdict = self.guard.judge(report, local, self.clip_norm)
        self._buffers.put_back_unless(verdict.keep)
        if self.parallel.compression is not None:
            self.parallel.compression.keep(verdict.keep)
        if self.balance is not None:
            self.balance.update(weights, verdict.keep)
        if self.look:
            keep, factor = torch.stack([verdict.keep.float(), verdict.factor]).tolist()
            if keep:
                if factor != 1:
                    torch._foreach_mul_(gradients, factor)
                weights.hand_over(gradients)
                self.optimizer.step()
                weights.publish()
            return
        if self.clip_norm > 0 or self.guard.scales:
            torch._foreach_mul_(gradients, verdict.factor)
        weights.hand_over(gradients)
        if obeys_flag(self.optimizer):
            update_unless(self.optimizer, (~verdict.keep).float())
        else:
            self.optimizer.step()  # a rehearsal of an optimizer that must be looked after: nothing is decided
        weights.publish()
