"""A step's micro-batches, forward and backward, by DeepSpeed's two engines.

    DeepSpeedEngine   engine(micro) -> engine.backward(loss) -> engine.step(), which updates after the last
    PipelineEngine    engine.train_batch(micros): 1F1B, reduction and update in one call

Both average gradients over data-parallel ranks and micro-batches. Ours are sums: a loss is the sum of its
tokens' over the counted tokens of the whole global batch, so it is multiplied by ranks x micro-batches first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.parallel.execute import Loss, Recorder
from scalewright.parallel.inputs import Micro
from scalewright.parallel.logits_loss import IGNORED
from scalewright.train.deepspeed.stages import Feed


class WithLoss(nn.Module):
    """A network and its loss as one module: ZeRO 3 lets parameters go when a forward ends, the head's too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, micro: Micro, loss: Loss) -> tuple[Tensor, Tensor]:
        """Sums of token losses and of auxiliary ones."""
        return loss(self.network(micro.tokens, **micro.arguments), micro.targets)


class Whole:
    """Every rank runs the whole network."""

    def __init__(self, engine: Any, averaged: int) -> None:
        """`averaged`: data-parallel ranks x micro-batches of a rank."""
        self.engine, self.averaged = engine, averaged
        self.recorder = Recorder()

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """Micro-batch after micro-batch; the update of the last one waits for `update`."""
        losses = torch.zeros(2, device=divisor.device)
        self.engine.train()
        for index, micro in enumerate(micros):
            total, extra = self.engine(micro, loss)
            self.engine.backward((total + extra) * self.averaged / divisor)
            losses += torch.stack([total.detach(), extra.detach()]) / divisor
            if index < len(micros) - 1:
                self.engine.step()
        return losses

    def update(self) -> None:
        """Clips and updates."""
        self.engine.step()

    @torch.no_grad()
    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch."""
        self.engine.eval()
        total: Tensor = self.engine(micro, loss)[0]
        return total


class Piped:
    """Every rank runs a stage."""

    def __init__(self, feed: Feed, averaged: int, rows: int) -> None:
        """`rows`: of a micro-batch. The engine comes later: its module needs this object's `loss_of`."""
        self.feed, self.averaged, self.rows = feed, averaged, rows
        self.engine: Any = None
        self.recorder = Recorder()
        self._loss: Loss | None = None
        self._divisor: Tensor | None = None  # null: sums are wanted
        self._losses = torch.zeros(2)

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """The whole step, with the update; 0 where a rank isn't of the last stage."""
        self._loss, self._divisor = loss, divisor
        self._losses = torch.zeros(2, device=divisor.device)
        self.feed.begin(micros)
        self.engine.train_batch(iter([(micro.tokens, micro.targets) for micro in micros]))
        return self._losses

    def update(self) -> None:
        """Done already."""

    def loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What the last stage begins a backward from, or adds up in a validation."""
        assert self._loss is not None
        total, extra = self._loss(logits, targets)
        if self._divisor is None:
            return total
        self._losses += torch.stack([total.detach(), extra.detach()]) / self._divisor
        return (total + extra) * self.averaged / self._divisor

    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch; 0 where a rank isn't of the last stage. All ranks call it."""
        self._loss, self._divisor = loss, None
        micro = _filled(micro, self.rows)
        self.feed.begin([micro])
        batch = iter([(micro.tokens, micro.targets)])
        made = self.engine.eval_batch(batch, reduce_output=None, bcast_loss=False, num_micro_batches=1)
        return made[0] if self.engine.is_last_stage() else torch.zeros((), device=micro.tokens.device)


def _filled(micro: Micro, rows: int) -> Micro:
    """A micro-batch of `rows` rows, as all of a pipeline are: its last row again, of which nothing counts."""
    short = rows - len(micro.tokens)
    if not short:
        return micro

    def fill(values: Tensor) -> Tensor:
        return torch.cat([values, values[-1:].expand(short, *values.shape[1:])])

    targets = fill(micro.targets)
    targets[-short:] = IGNORED
    arguments = {name: fill(value) if len(value) > 1 else value for name, value in micro.arguments.items()}
    return Micro(fill(micro.tokens), targets, arguments)


def watch_updates(engine: Any, look: Callable[[], bool]) -> None:
    """Lets ZeRO 0's update ask `look()` first: whether gradients, reduced and not yet clipped, are finite.

    The other stages look themselves, and tell their norm; this one clips and updates whatever there is.
    """
    take = engine._take_model_step

    def guarded(lr_kwargs: Any, *rest: Any, **more: Any) -> None:
        if look():
            take(lr_kwargs, *rest, **more)
        else:
            engine.zero_grad()
            engine.skipped_steps += 1

    engine._take_model_step = guarded
