"""Finds where a number first wasn't finite, once a run is over for it: slow, and as exact as it can be.

    1  weights      a tensor with inf or NaN
    2  forward      the first module whose output isn't finite, in a replay of the step
    3  the loss     of finite logits
    4  backward     the first module (from the loss on) whose output's gradient isn't finite
    5  gradients    a tensor whose summed gradient isn't

Every rank replays its own part to the end, so that collectives meet; then the ranks compare. An earlier kind comes
first; among ranks with the same kind, the stage that runs first (in a backward, the last), then the lowest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.model.torch_private import tree_leaves
from scalewright.parallel.collectives import all_sum, gather_json
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.stages import stages_of
from scalewright.parallel.weights import Weight

WEIGHT, FORWARD, LOSS, BACKWARD, GRADIENT = range(5)
WORDS = (
    "the weight '{}'",
    "the output of '{}' (forward)",
    "the loss, of finite logits",
    "the gradient of the output of '{}' (backward)",
    "the gradient of '{}'",
)


@dataclass(frozen=True)
class Suspect:
    """Where the first non-finite number is: a module or a canonical tensor name, and the rank that has it."""

    kind: int
    name: str
    rank: int

    def __str__(self) -> str:
        return f"{WORDS[self.kind].format(self.name)} on rank {self.rank}"


def find_suspect(
    parallel: Parallel, loss: Loss, mesh: Mesh, micros: Sequence[Micro], counted: Tensor, scale: float = 1.0
) -> Suspect | None:
    """Where the first non-finite number of a step is, the same answer on every rank; None: not found again. All ranks
    call it together, with what they gave the step. Gradients are overwritten. `scale`: the step's loss scale."""
    suspect = _agree(_first_bad(WEIGHT, ((weight, weight.master) for weight in parallel.weights)), mesh)
    if suspect is not None or not micros:
        return suspect
    notes = _Notes(max(stages_of(parallel.model)))
    handles = [
        module.register_forward_hook(notes.watch(stage, name or type(cut).__name__))
        for stage, cut in stages_of(parallel.model).items()
        for name, module in cut.named_modules()
    ]
    divisor = all_sum(counted.to(torch.float32, copy=True), mesh, "loss").clamp(min=1.0) / scale
    try:
        with torch.compiler.set_stance("force_eager"):  # inside compiled blocks no hook is called
            parallel.executor.train(micros, notes.loss(loss), divisor)
        gradients = ((weight, weight.gradient) for weight in parallel.weights.trained())
        finding = notes.first or _first_bad(GRADIENT, gradients)
    finally:
        for handle in handles:
            handle.remove()
    return _agree(finding, mesh)


# One entry of a rank: (kind, stage in the order in which that kind runs, name).
_Finding = tuple[int, int, str]


def _agree(finding: _Finding | None, mesh: Mesh) -> Suspect | None:
    answers = [(*answer[:2], rank, answer[2]) for rank, answer in enumerate(gather_json(finding, mesh)) if answer]
    if not answers:
        return None
    kind, _, rank, name = min(answers)
    return Suspect(kind, name, rank)


def _first_bad(kind: int, tensors: Iterable[tuple[Weight, Tensor | None]]) -> _Finding | None:
    """The first weight whose tensor isn't finite."""
    return next(((kind, weight.stage, weight.name) for weight, tensor in tensors if not _finite(tensor)), None)


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.numel() or bool(torch.isfinite(value).all())


class _Notes:
    """The first non-finite number that hooks of one rank meet; what follows is a consequence."""

    def __init__(self, last_stage: int) -> None:
        self.first: _Finding | None = None
        self.last_stage = last_stage  # of the rank

    def watch(self, stage: int, name: str) -> Any:
        """A forward hook for one module."""

        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in tree_leaves(output):
                if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                    continue
                self._note(FORWARD, stage, name, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(  # type: ignore[no-untyped-call]
                        lambda gradient: self._note(BACKWARD, -stage, name, gradient)
                    )

        return look

    def loss(self, inner: Loss) -> Loss:
        """The loss function, watched."""

        def look(logits: Tensor, total: Tensor) -> None:
            self._note(FORWARD, self.last_stage, "head", logits)
            self._note(LOSS, 0, "loss", total)

        if isinstance(inner, CrossEntropy):  # its logits may exist a few at a time alone
            return replace(inner, look=look)

        def watched(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            finite = _finite(logits)  # before their gradient takes their place
            total, extra = inner(logits, targets)
            if finite:
                self._note(LOSS, 0, "loss", total)
                self._note(LOSS, 0, "loss", extra)
            return total, extra

        return watched

    def _note(self, kind: int, stage: int, name: str, tensor: Tensor) -> None:
        if self.first is None and not _finite(tensor.detach()):
            self.first = (kind, stage, name)
