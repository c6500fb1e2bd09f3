"""Decides, on the device, whether a step's update is taken, and by how much its gradient is scaled.

    all-reduced report  ->  finite?  spike?  ->  keep (a bool), factor (a number)  ->  clip, update

The report is equal on all ranks, so the decision is, without one more message and without the host waiting:
nothing here reads a value. What is decided is written beside the report (train/columns.py); the host reads it
with the numbers, one step late on a GPU. So the device counts non-finite steps in a row itself, and takes no
update after the last that a run is allowed: the weights stay those that the fault was seen with.

An overflow of fp16 gradients is no fault: the loss scale falls, the update is left out, and the step counts
as neither finite nor non-finite, until the scale is at its floor (train/scale.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.spec.guard import GuardSpec
from scalewright.train.columns import (
    AUX,
    FACTOR,
    LOCAL,
    LOSS,
    NORM,
    SCALE,
    SKIPPED,
    STREAK,
)


@dataclass(frozen=True)
class Verdict:
    """What is done with a step's gradients; scalars on the device."""

    keep: Tensor  # bool: whether the update is taken
    factor: Tensor  # fp32: what gradients are multiplied by; clipping and the loss scale are in it


class Guard:
    """The decisions of a run, and what they remember: all of it on the device."""

    def __init__(self, spec: GuardSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.streak = torch.zeros((), device=device)

    @property
    def scales(self) -> bool:
        """Whether the factor can be another than 1 without `clip_norm`."""
        return False

    def note_local(self, report: Tensor) -> Tensor:
        """This rank's own part, before the all-reduce: 1 for its loss, 2 for its gradients, 0 for neither."""
        finite = torch.isfinite(report[: NORM + 1])
        gradients = torch.where(finite[NORM], 0.0, 2.0)
        return torch.where(finite[LOSS] & finite[AUX], gradients, 1.0)

    @torch.no_grad()
    def judge(self, report: Tensor, local: Tensor, clip_norm: float) -> Verdict:
        """The decision on a step, from its all-reduced report and `note_local`'s answer; written there, too.

        `clip_norm` bounds the gradient norm; 0: nothing does.
        """
        report[LOCAL] = local
        report[FACTOR] = report[SCALE] = 1.0
        norm = report[NORM]
        finite = torch.isfinite(report[: NORM + 1]).all()
        keep = finite
        if self.spec.patience:
            keep = keep & (self.streak < self.spec.patience)
        self.streak = torch.where(finite, 0.0, self.streak + 1)
        factor = torch.ones((), device=self.device)
        if clip_norm > 0:
            factor = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
        report[SKIPPED] = ~keep
        report[STREAK] = self.streak
        return Verdict(keep, factor)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resume decides as the run would have: plain data, exact."""
        return {"streak": int(self.streak.item())}

    def load(self, state: dict[str, Any]) -> None:
        """Takes what `state` gave. A run that had stopped for its streak begins a new one."""
        streak = int(state.get("streak", 0))
        ended = bool(self.spec.patience) and streak >= self.spec.patience
        self.streak = torch.tensor(0.0 if ended else float(streak), device=self.device)
