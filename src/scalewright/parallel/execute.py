"""The runner of a step's forwards and backwards: one after the other here, or by a pipeline's schedule.

    Plain       for each micro-batch:  forward -> loss -> backward
    Pipeline    the actions of `spec/schedule.py`                       (parallel/pipeline.py)

Either leaves gradients as sums over this rank's micro-batches, reduced over the data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.inputs import Micro
from scalewright.parallel.stages import take_auxiliary
from scalewright.spec.schedule import Action, Schedule

# (what the model gave: logits, or `Predictions`; targets) -> (sum of token losses, sum of auxiliary losses),
# fp32 scalars
Loss = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def run_losses(stage: nn.Module, inputs: Tensor, micro: Micro, loss: Loss) -> tuple[Tensor, Tensor]:
    """A whole model, or the last stage of one, and the loss of what it makes of `inputs`.

    Our own network hands the built-in loss its head's input and weight, and the loss makes logits as it needs
    them. Other losses, and a user's own network, have whole logits between them.
    """
    if not (isinstance(loss, CrossEntropy) and isinstance(stage, Decoder)):
        return loss(stage(inputs, **micro.arguments), micro.targets)
    made, cap = stage(inputs, **micro.arguments, product=_operands), stage.spec.logit_softcap
    if "ahead" not in micro.arguments:
        losses: tuple[Tensor, Tensor] = loss.of_head(micro.targets, cap)(*made)
        return losses
    depths = zip(micro.targets, [made.logits, *made.ahead], strict=True)
    return loss.with_predictions([loss.of_head(targets, cap)(*operands) for targets, operands in depths])


def _operands(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a head would multiply, for later: FSDP frees its buffer of the last gather when the forward ends. Views,
    since FSDP leaves a hook on what a module returns, which would stay with a parameter."""
    return hidden, weight.view_as(weight), None if bias is None else bias.view_as(bias)


class Recorder:
    """Called when each action starts and ends; this one does nothing."""

    def start(self, plan: Schedule) -> None:
        """A step of this schedule begins."""

    def before(self, action: Action) -> None:
        """An action begins."""

    def after(self, action: Action) -> None:
        """It has ended."""

    def arrived(self) -> None:
        """All actions are done, and all messages have arrived."""


class GradientSync(Protocol):
    """How gradients become sums over ranks and micro-batches."""

    def clear(self) -> None:
        """Before a step: gradients are zero."""

    def begin(self, stage: int, last: bool) -> None:
        """Before a backward (or its weight part) of a stage; `last`: the stage's last of the step."""

    def end(self, stage: int, last: bool) -> None:
        """After it: starts the reductions that are due and that no hook has started."""

    def finish(self) -> None:
        """After the last backward: every gradient is the sum over the data-parallel ranks."""


class Executor(Protocol):
    """Runs micro-batches through the model under its layout, and tells its recorder of what it does."""

    recorder: Recorder

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """A step's forwards and backwards; fp32 [2]: (loss, auxiliary) / divisor, 0 where a rank has none."""

    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """A micro-batch's loss sum, without gradients; 0 where a rank has none. All pp ranks call it."""


class Plain:
    """Every rank runs the whole network."""

    def __init__(self, model: nn.Module, gradients: GradientSync) -> None:
        self.model, self.gradients = model, gradients
        self.recorder = Recorder()

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """Micro-batch after micro-batch."""
        losses = torch.zeros(2, device=divisor.device)
        self.gradients.clear()
        for index, micro in enumerate(micros):
            last = index == len(micros) - 1
            self.gradients.begin(0, last)
            forward, backward = Action("forward", 0, index), Action("backward", 0, index)
            self.recorder.before(forward)
            total, extra = run_losses(self.model, micro.tokens, micro, loss)
            if (auxiliary := take_auxiliary(self.model)) is not None:
                extra = extra + auxiliary
            self.recorder.after(forward)
            self.recorder.before(backward)
            ((total + extra) / divisor).backward()  # type: ignore[no-untyped-call]
            self.recorder.after(backward)
            losses += torch.stack([total.detach(), extra.detach()]) / divisor
            self.gradients.end(0, last)
        self.gradients.finish()
        return losses

    @torch.no_grad()
    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch."""
        total, _ = run_losses(self.model, micro.tokens, micro, loss)
        return total
