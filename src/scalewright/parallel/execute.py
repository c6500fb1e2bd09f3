"""The runner of a step's forwards and backwards: one after the other here, or by a pipeline's schedule.

    Plain       for each micro-batch:  forward -> loss -> backward
    Pipeline    the actions of `spec/schedule.py`                       (parallel/pipeline.py)

Either leaves gradients as sums over this rank's micro-batches, reduced over the data-parallel ranks. A recorder notes
when every action of a pipeline's step began and ended, for `traces/pipeline-step-00000005.json`:

    {schedule, ranks, virtual_stages, micro_batches, step, rank_of: [rank of each stage],
     actions: [[{kind, stage, micro, start_s, end_s}, ...] of each pipeline rank]}

Seconds count from a barrier before the step. The ranks of one machine share its clock; others' are as far apart as they
left the barrier. On a CPU they are the host's; on a GPU those of the stream, from events that are read after the step:
nothing waits in between. A receive lasts while its rank (or its stream) waits; a send only starts.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.parallel.collectives import barrier, gather_json
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
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


class ActionTimes(Recorder):
    """A recorder of one rank's actions; starts anew with every step."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.on_gpu = mesh, mesh.device.type == "cuda"
        self.plan: Schedule | None = None
        self._actions: list[Action] = []
        self._marks: list[Any] = []  # seconds, or events; one before all, then two for each action
        self._zero = 0.0  # the machine's clock at the first

    def start(self, plan: Schedule) -> None:
        """All ranks begin together."""
        self.plan = plan
        self._actions, self._marks = [], []
        if self.on_gpu:
            torch.cuda.synchronize(self.mesh.device)
        barrier(self.mesh)
        self._zero = time.perf_counter()
        self._mark()

    def before(self, action: Action) -> None:
        """An action begins."""
        self._actions.append(action)
        self._mark()

    def after(self, action: Action) -> None:
        """It has ended (on a GPU: all its work has been given to the stream)."""
        self._mark()

    def _mark(self) -> None:
        if not self.on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.mesh.device))
        self._marks.append(event)

    def spans(self) -> list[tuple[Action, float, float]]:
        """Every action with its start and end in seconds; on a GPU this waits for the step's end."""
        if not self._marks:
            return []
        if self.on_gpu:
            torch.cuda.synchronize(self.mesh.device)
        zero, *marks = self._marks
        seconds = [zero.elapsed_time(mark) / 1000 if self.on_gpu else mark - zero for mark in marks]
        return list(zip(self._actions, seconds[::2], seconds[1::2], strict=True))

    def gather(self, step: int) -> dict[str, object]:
        """The whole picture, of this rank's pipeline; every rank of the world calls it."""
        assert self.plan is not None, "nothing has been recorded"
        host = platform.node()
        everyone = gather_json([host, self._zero, self.spans()], self.mesh)
        members = next(ranks for ranks in self.mesh.grid.groups("pp") if self.mesh.rank in ranks)
        first = min(zero for node, zero, _ in (everyone[rank] for rank in members) if node == host)
        return {
            "schedule": self.plan.kind, "ranks": self.plan.ranks, "virtual_stages": self.plan.virtual_stages,
            "micro_batches": self.plan.micro_batches, "step": step, "rank_of": list(self.plan.rank_of),
            "actions": [_shifted(everyone[rank], host, first) for rank in members],
        }  # fmt: skip

    def write(self, folder: Path, step: int) -> None:
        """Gathers; rank 0 writes its own pipeline's picture, since the others' are alike."""
        picture = self.gather(step)
        if self.mesh.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"pipeline-step-{step:08d}.json"
            path.write_text(json.dumps(picture), encoding="utf-8")


def _shifted(recorded: list[Any], host: str, first: float) -> list[dict[str, object]]:
    """One rank's actions, in seconds from the moment at which the first rank of this machine began."""
    node, zero, spans = recorded
    late = zero - first if node == host else 0.0
    return [
        {"kind": kind, "stage": stage, "micro": micro, "start_s": start + late, "end_s": end + late}
        for (kind, stage, micro, *_), start, end in spans
    ]
