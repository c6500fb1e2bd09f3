"""Decides, on the device, whether a step's update is taken, and by how much its gradient is scaled.

    all-reduced report  ->  finite?  spike?  ->  keep (a bool), factor (a number)  ->  clip, update

The report is equal on all ranks, so the decision is, without one more message and without the host waiting: nothing
here reads a value. The decision is written beside the report (train/columns.py); the host reads it with the numbers,
one step late on a GPU. So the device counts non-finite steps in a row itself, and takes no update after the last that a
run is allowed: the weights stay those that the fault was seen with.

Dynamic loss scaling, for fp16: gradients too small for fp16 (below 6e-8) are carried by a larger loss.

    backward of  loss * scale     gradients are scale times too large, in fp16 and in their fp32 sums
    norm, clip   / scale          one factor for both, no pass of its own
    inf or NaN in gradients       the update is left out, scale / 2
    2,000 good steps in a row     scale * 2

The numbers are those of `torch.amp.GradScaler` (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2); it can't be
used itself, since it reads on the host whether there was an inf, and on one rank alone. Scales are powers of two, so
that scaling rounds nothing. An overflow with a finite loss is how the scale finds its place, and no fault: the step
counts as neither finite nor non-finite. At the floor it is one: nothing is left to halve. A loss that isn't finite
doesn't come from the scale, which then stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.spec.guard import GuardSpec
from scalewright.train.clipping import clipped
from scalewright.train.columns import AUX, LOCAL, LOSS, NORM, SKIPPED
from scalewright.train.guard.spikes import SIGMAS, Usual, ZClip


@dataclass(frozen=True)
class StepDecision:
    """The decision on a step's gradients; scalars on the device."""

    keep: Tensor  # bool: whether the update is taken
    factor: Tensor  # fp32: what gradients are multiplied by; clipping and the loss scale are in it


class Guard:
    """The decisions of a run, and what they remember: all of it on the device."""

    def __init__(self, spec: GuardSpec, device: torch.device, *, fp16: bool = False) -> None:
        self.spec, self.device = spec, device
        self.streak = torch.zeros((), device=device)
        self.usual = Usual(device) if spec.spike != "zclip" else None
        self.zclip = ZClip(device) if spec.spike == "zclip" else None
        self.scale = LossScale(device) if fp16 else None
        self._one = torch.ones((), device=device)

    @property
    def scales(self) -> bool:
        """Whether the factor can be another than 1 without `clip_norm`."""
        return self.zclip is not None or self.scale is not None

    def note_local(self, report: Tensor) -> Tensor:
        """This rank's own part, before the all-reduce: 1 for its loss, 2 for its gradients, 0 for neither."""
        finite = torch.isfinite(report[: NORM + 1])
        gradients = torch.where(finite[NORM], 0.0, 2.0)
        return torch.where(finite[LOSS] & finite[AUX], gradients, 1.0)

    @torch.no_grad()
    def judge(self, report: Tensor, local: Tensor, clip_norm: float) -> StepDecision:
        """The decision on a step, from its all-reduced report and `note_local`'s answer; written there, too. The
        reported norm becomes that of unscaled gradients. `clip_norm` bounds it; 0: nothing does."""
        scale = self._one if self.scale is None else self.scale.value
        if self.scale is not None:
            report[NORM] /= scale
        norm = report[NORM].clone()
        each = torch.isfinite(report[: NORM + 1])
        finite = each.all()
        keep = finite if not self.spec.patience else finite & (self.streak < self.spec.patience)
        reported = streak = torch.where(finite, 0.0, self.streak + 1)
        if self.scale is not None:
            overflow = self.scale.overflowed(each[LOSS] & each[AUX], finite)
            streak = torch.where(overflow, self.streak, streak)
            self.scale.adapt(overflow, finite)
            reported = torch.where(overflow, 0.0, streak)
        self.streak = streak
        spike, z, usual, shrink = self._spikes(report[LOSS], norm, finite)
        if self.spec.spike in ("skip", "rewind"):
            keep = keep & (spike == 0)
        factor = clipped(shrink, norm, clip_norm) if clip_norm > 0 else shrink
        if self.scale is not None:
            factor = factor / scale
        columns = [1.0 - keep.float(), reported, spike, z, usual, shrink, scale, local]
        report[SKIPPED : LOCAL + 1] = torch.stack(columns)
        return StepDecision(keep, factor)

    def _spikes(self, loss: Tensor, norm: Tensor, finite: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The columns SPIKE, Z, USUAL and FACTOR of a step."""
        if self.zclip is not None:
            shrink, z, usual = self.zclip.look(norm, finite)
            return 2.0 * (z > 0), z, usual, shrink
        assert self.usual is not None
        scores, usual = self.usual.look(loss, norm, finite)
        z, index = scores.max(dim=0)  # the one that is further out
        spike = torch.where(z > SIGMAS, index + 1.0, 0.0)
        return spike, z, usual.gather(0, index[None])[0], self._one

    @property
    def _parts(self) -> dict[str, Usual | ZClip | LossScale]:
        parts = {"usual": self.usual, "zclip": self.zclip, "scale": self.scale}
        return {name: part for name, part in parts.items() if part is not None}

    def state(self) -> dict[str, object]:
        """The state for a checkpoint, so that a resume decides as the run would have: plain data, exact."""
        return {"streak": int(self.streak.item()), **{name: part.state() for name, part in self._parts.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave. A run that had stopped for its streak begins a new one."""
        streak = int(state.get("streak", 0))
        ended = bool(self.spec.patience) and streak >= self.spec.patience
        self.streak = torch.tensor(0.0 if ended else float(streak), device=self.device)
        for name, part in self._parts.items():
            part.load(state.get(name, {}))


FIRST, FLOOR, CEILING = 2.0**16, 1.0, 2.0**32
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """The scale of the next step, and the good steps since it last changed: on the device."""

    def __init__(self, device: torch.device) -> None:
        self.value = torch.tensor(FIRST, device=device)
        self.good = torch.zeros((), device=device)

    def overflowed(self, loss_finite: Tensor, finite: Tensor) -> Tensor:
        """Whether a step's gradients overflowed for their scale; bools on the device."""
        return loss_finite & ~finite & (self.value > FLOOR)

    def adapt(self, overflow: Tensor, finite: Tensor) -> None:
        """The scale of the next step."""
        self.good = torch.where(overflow, 0.0, self.good + finite.float())
        grown = self.good >= INTERVAL
        factor = torch.where(overflow, BACKOFF, torch.where(grown, GROWTH, 1.0))
        self.value = (self.value * factor).clamp(FLOOR, CEILING)
        self.good = torch.where(grown, 0.0, self.good)

    def state(self) -> dict[str, object]:
        return {"value": self.value.item(), "good": self.good.item()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.value.fill_(state.get("value", FIRST))
        self.good.fill_(state.get("good", 0.0))
