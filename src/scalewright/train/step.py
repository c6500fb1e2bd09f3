"""One optimizer step, the same for every layout.

    the executor            micro-batches: logits -> loss sum / tokens of the global batch -> backward
    gradients are sums      over micro-batches and ranks; nothing divides them again
    norm                    of local shards, weighted by copies; one all-reduce carries the loss, too
    guard                   is the update taken? (train/guard/decide.py)
    clip, update, publish   on local fp32 weights
    islands                 the outer step, where one is due (train/diloco.py)

A step is done once the report's sum is there, which is the last that an update needs of others: from then on it is
taken, whatever becomes of them. A rank that lost others in that exchange can still take it (`complete`).

No value leaves the device: the step gives one small tensor, and whoever wants numbers reads it later. An update is
taken, or left out: weights, moments and step counts then stay as they were.

    where numbers can be looked at (a CPU, offloaded masters)   the host looks, and doesn't call the optimizer
    fused AdamW, Adam, SGD on a GPU                             `found_inf`: the kernel itself does nothing
    our Lion and Muon                                           the same flag (train/optimizer.py, muon.py)
    any other optimizer on a GPU                                the host looks: it waits for the norm

The last one costs a wait a step, as `torch.amp.GradScaler` does for optimizers without a fused step. Keeping a copy of
weights and states to go back to would cost no wait, but 12 more bytes a parameter under Adam, and what an optimizer
keeps to itself would be in no copy. torch's contract of `found_inf`: `Optimizer._step_supports_amp_scaling`; the
kernels return at once when it is 1, and the step count is taken back. One state is not covered: fused SGD makes its
first momentum buffer without filling it, so it is made here, of zeros (momentum * 0 + g = g, the same first step).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.stages import stages_of
from scalewright.parallel.weights import sum_partial
from scalewright.spec.guard import GuardSpec
from scalewright.train.balance import Balance
from scalewright.train.clipping import scale, squared_part, sum_over_ranks
from scalewright.train.columns import AUX, BUSIEST, DROPPED, LOSS, MEMORY, NORM, OUTER, STOP, TOKENS, WIDTH, WRITTEN
from scalewright.train.diloco import Islands
from scalewright.train.guard.decide import Guard, StepDecision
from scalewright.train.memory.usage import memory_gib


@dataclass
class Broken:
    """A step whose report is on its way: gradients are complete, the update is not taken."""

    gradients: list[Tensor]
    local: Tensor  # of the guard
    tokens: Tensor
    before: Guard | None  # as it was before it judged; None: it goes back to nothing
    summed: Tensor | None = None  # the report of this rank's island
    verdict: StepDecision | None = None


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
    before_update: Callable[[], None] | None = None  # called when a step's gradients are there
    survives: bool = False  # whether ranks that are left go on in their processes (train/regroup.py)
    broken: Broken | None = None  # the newest step, until it is taken
    taken: bool = False  # whether its update was
    summed: Tensor | None = None  # the report of the newest step that was taken: an island's sum
    report: Tensor | None = None  # and what is told of it, of all islands
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

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: float = 0, written: float = 0.0) -> Tensor:
        """Trains on this rank's micro-batches; [WIDTH + world], as `train/columns.py` has it.

        `counted` is this rank's number of counted tokens, an int64 scalar on the device. Loss is in nats per counted
        token of the global batch, before the update; the norm is that before clipping. An island divides by the tokens
        of its own part, and the report has means over islands. `stop`: this rank's `stop_request`; `written`: whether
        its part of a save is on the disk.
        """
        self.broken, self.taken = None, False
        self._buffers.keep()
        report = torch.zeros(WIDTH + self.mesh.world, device=self.mesh.device)
        tokens = all_sum(counted.to(torch.int64, copy=True), self.mesh, "loss")
        # a batch without a counted token teaches nothing, and breaks nothing
        divisor = tokens.clamp(min=1).to(torch.float32)
        with self.mesh.timers.phase("compute"):
            losses = self._losses(micros, divisor)
        report[LOSS : AUX + 1] = losses / self.mesh.size("tp")  # whose ranks all have the same
        report[STOP], report[WRITTEN] = stop, written
        with self.mesh.timers.phase("optimizer"):
            exact = self._update(report, tokens)
        self.parallel.buffers.share()
        if self.islands is None:
            return exact
        with self.mesh.timers.phase("optimizer"):
            exact[OUTER] = self.islands.after_step()
        return exact

    def _losses(self, micros: Sequence[Micro], divisor: Tensor) -> Tensor:
        """Forwards and backwards; gradients are left scaled (fp16), the losses aren't."""
        assert self.guard is not None
        if self.guard.scale is None:
            return self.parallel.executor.train(micros, self.loss, divisor)
        scale = self.guard.scale.value
        return self.parallel.executor.train(micros, self.loss, divisor / scale) / scale

    def again(self, micros: Sequence[Micro], counted: Tensor) -> tuple[float, float]:
        """(loss, gradient norm) of a step whose update was left out, computed once more. Nothing but gradients is
        changed, and no island merged. All ranks call it, with the step's random numbers; the host waits for it."""
        assert self.guard is not None
        report = torch.zeros(WIDTH + self.mesh.world, device=self.mesh.device)
        tokens = all_sum(counted.to(torch.int64, copy=True), self.mesh, "loss")
        self._buffers.keep()
        scale = self.guard.scale.value.clone() if self.guard.scale is not None else 1.0
        losses = self._losses(micros, tokens.clamp(min=1).to(torch.float32))
        report[LOSS : AUX + 1] = losses / self.mesh.size("tp")
        with torch.no_grad():
            gradients = self.parallel.weights.take_gradients()
            sum_partial(self.parallel.weights, gradients, self.mesh)
            report[NORM] = squared_part(gradients, self._shares)
        if self.balance is not None:
            self.balance.count()  # these tokens were counted with the step
        sum_over_ranks(report, self.mesh)
        left_out = torch.zeros((), dtype=torch.bool, device=self.mesh.device)
        self._buffers.put_back_unless(left_out)
        if self.parallel.compression is not None:
            self.parallel.compression.keep(left_out)
        loss, norm = torch.stack([report[LOSS], report[NORM] / scale]).tolist()
        return loss, norm

    @torch.no_grad()
    def _update(self, report: Tensor, tokens: Tensor) -> Tensor:
        """Clips and updates from the gradients that lie there; the step's report, of all islands."""
        assert self.guard is not None
        weights = self.parallel.weights
        if self.before_update is not None:
            self.before_update()
        gradients = weights.take_gradients()
        sum_partial(weights, gradients, self.mesh)
        report[NORM] = squared_part(gradients, self._shares)
        report[MEMORY + self.mesh.rank] = memory_gib(self.mesh.device)
        if self.balance is not None:
            report[BUSIEST : DROPPED + 1] = self.balance.count()
        before = deepcopy(self.guard) if self.survives and self.islands is not None else None
        self.broken = Broken(gradients, self.guard.note_local(report), tokens, before)
        sum_over_ranks(report, self.mesh)
        exact = self._judge(self.broken, report)
        if self.islands is not None:
            exact = self.islands.merge(exact)
        self._take(self.broken, exact)
        return exact

    def _judge(self, step: Broken, summed: Tensor) -> Tensor:
        """Decides on a step by its summed report; with the decision, in fp64."""
        assert self.guard is not None
        step.summed = summed.clone() if self.survives else summed
        step.verdict = self.guard.judge(summed, step.local, self.clip_norm)
        exact = summed if self.mesh.device.type == "mps" else summed.double()
        exact[TOKENS] = step.tokens
        return exact

    @torch.no_grad()
    def complete(self, summed: Tensor) -> None:
        """Takes the step that broke off, by the sum that another rank of the island has. Without any message: buffers
        and islands are still to be shared."""
        assert self.broken is not None
        if self.broken.verdict is None:
            self._judge(self.broken, summed.clone())
        self._take(self.broken, None)

    def undo(self) -> None:
        """What a step that broke off has changed goes back: it is done again."""
        self._buffers.put_back_unless(torch.zeros((), dtype=torch.bool, device=self.mesh.device))
        if self.broken is not None and self.broken.before is not None and self.guard is not None:
            self.guard.load(self.broken.before.state())

    def _take(self, step: Broken, report: Tensor | None) -> None:
        """The update, as it was decided."""
        weights, gradients, verdict = self.parallel.weights, step.gradients, step.verdict
        assert self.guard is not None
        assert verdict is not None
        self.broken, self.taken, self.summed, self.report = None, True, step.summed, report
        self._buffers.put_back_unless(verdict.keep)
        if self.parallel.compression is not None:
            self.parallel.compression.keep(verdict.keep)
        if self.balance is not None:
            self.balance.update(weights, verdict.keep)
        if self.look:
            keep, factor = torch.stack([verdict.keep.float(), verdict.factor]).tolist()
            if keep:
                if factor != 1:
                    scale(gradients, factor)
                weights.hand_over(gradients)
                self.optimizer.step()
                weights.publish()
            return
        if self.clip_norm > 0 or self.guard.scales:
            scale(gradients, verdict.factor)
        weights.hand_over(gradients)
        if obeys_flag(self.optimizer):
            update_unless(self.optimizer, (~verdict.keep).float())
        else:
            self.optimizer.step()  # a rehearsal of an optimizer that must be looked after: nothing is decided
        weights.publish()


def obeys_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update can be left out by `found_inf`, a number on the device."""
    if isinstance(optimizer, torch.optim.SGD) and any(group["dampening"] for group in optimizer.param_groups):
        return False  # its first step has no dampening; one that starts from zeros has
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@torch.no_grad()
def update_unless(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Takes the update unless `skip` (fp32, on the device) is 1. For optimizers with `obeys_flag`."""
    if isinstance(optimizer, torch.optim.SGD):
        with_momentum = (param for group in optimizer.param_groups if group["momentum"] for param in group["params"])
        for param in with_momentum:
            state = optimizer.state[param]
            if param.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(param)
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()


SMALL = 1 << 16  # elements: more than any layer has channels


class KeptBuffers:
    """A user's own module may change its buffers in a forward (BatchNorm): a skipped step puts them back. Large buffers
    that don't change, such as masks and tables, are copied once, by torch's count of a tensor's changes. Small ones are
    copied every step: batch norm's kernels write running means without counting. Our own decoder changes none."""

    def __init__(self, model: nn.Module) -> None:
        self.stages = [stage for stage in stages_of(model).values() if not isinstance(stage, Decoder)]
        self.kept: dict[tuple[nn.Module, str], _Kept] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Before a step: copies what may have to be put back."""
        places = {
            (module, name): buffer
            for stage in self.stages
            for module in stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self.kept = {
            place: kept if (kept := self.kept.get(place)) and kept.is_now(buffer) else _Kept.of(buffer)
            for place, buffer in places.items()
        }

    @torch.no_grad()
    def put_back_unless(self, keep: Tensor) -> None:
        """After a step that isn't kept (a bool on the device): buffers as they were before it. A forward may have put
        another tensor in a buffer's place (`self.mean = 0.9 * self.mean + 0.1 * x`). A buffer that has another shape
        than before stays: which one to keep would need the host to wait."""
        for (module, name), kept in self.kept.items():
            now = module._buffers.get(name)
            if now is None or kept.is_now(now):
                continue
            if now is kept.buffer:
                now.copy_(torch.where(keep, now, kept.copy))
            elif now.shape == kept.copy.shape:
                module._buffers[name] = torch.where(keep, now, kept.copy.to(now.dtype))


class _Kept(NamedTuple):
    """A buffer, and what it was."""

    buffer: Tensor
    version: int
    copy: Tensor

    @classmethod
    def of(cls, buffer: Tensor) -> _Kept:
        uncounted = buffer.is_inference() or buffer.numel() <= SMALL  # torch may change those and not count
        version = -1 if uncounted else buffer._version
        return cls(buffer, version, buffer.clone())

    def is_now(self, buffer: Tensor) -> bool:
        """Whether a buffer is still this one, unchanged."""
        return buffer is self.buffer and self.version >= 0 and buffer._version == self.version
