"""The result of a comparison, and when it counts as equal.

    allowed at step s = max(tolerance, 10 x how far one device is from itself in the steps up to s)

One device is asked for that only when a layout is beyond its tolerance: trained again with its micro-batches
cut otherwise: the same mathematics, sums in another order. A model that magnifies rounding (small
embeddings under post-norms) then has room in its later steps, and none in the first, where a fault shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.spec.errors import RunError

ROOM = 10.0  # Times one device's own deviation: another layout changes more sums than another micro-batch does.
NEAR_TIE = 1e-6  # Sums in another order differ by 1e-7 a step in fp32, and so do scores; and a factor of ten.


@dataclass(frozen=True)
class StepDeviation:
    """One step's relative deviations from the control."""

    loss_rel: float
    grad_norm_rel: float


@dataclass(frozen=True)
class Flip:
    """A token that a layout's router sends elsewhere than the control's; what came before is equal."""

    step: int
    layer: int
    sample: int  # of the step's batch
    token: int
    margin: float  # between the scores of the experts concerned, relative to them (train/routes.py)

    @property
    def near(self) -> bool:
        """Whether rounding can have done it."""
        return self.margin <= NEAR_TIE * self.step


@dataclass(frozen=True)
class Deviation:
    """How far one run is from another: step by step, and in its weights after the last step."""

    steps: tuple[StepDeviation, ...]
    weights_rel: float
    worst_tensor: str

    @property
    def worst(self) -> float:
        """The largest deviation of all."""
        steps = (number for step in self.steps for number in (step.loss_rel, step.grad_norm_rel))
        return max([*steps, self.weights_rel])

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return {"steps": [asdict(step) for step in self.steps], "weights_rel": self.weights_rel}


@dataclass(frozen=True)
class Parity:
    """How far a layout is from one device, and whether that is rounding."""

    control: dict[str, object]
    layout: dict[str, object]
    deviation: Deviation
    tolerance: float
    reason: str  # for the tolerance
    noise: Deviation | None = None  # how far one device is from itself, where that was asked
    shrunk: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    flips: tuple[Flip, ...] = ()  # looked for beyond the tolerance
    replayed: bool = False  # the control's choices of experts, as all flips are near ties

    @property
    def worst(self) -> float:
        """The largest deviation of all."""
        return self.deviation.worst

    @property
    def ok(self) -> bool:
        """Whether every deviation is within the tolerance, or within what one device's rounding allows."""
        if self.noise is None:
            return self.worst <= self.tolerance
        allowed = self.tolerance
        for step, noise in zip(self.deviation.steps, self.noise.steps, strict=True):
            allowed = max(allowed, ROOM * noise.loss_rel, ROOM * noise.grad_norm_rel)
            if not max(step.loss_rel, step.grad_norm_rel) <= allowed < math.inf:
                return False
        return self.deviation.weights_rel <= max(self.tolerance, ROOM * self.noise.weights_rel) < math.inf

    def dump(self) -> dict[str, object]:
        """Plain data, with the keys of the command's answer."""
        return {
            "control": self.control,
            "layout": self.layout,
            **self.deviation.dump(),
            **{name: getattr(self, name) for name in ("worst", "tolerance", "ok", "reason")},
            "worst_tensor": self.deviation.worst_tensor,
            "noise": self.noise and self.noise.dump(),
            "shrunk": list(self.shrunk),
            "notes": list(self.notes),
            "flips": [asdict(flip) for flip in self.flips],
            "replayed": self.replayed,
        }


def step_deviations(
    mine: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]]
) -> tuple[StepDeviation, ...]:
    """The deviations of every step; raises RunError when the two runs saw other data."""
    if len(mine) != len(control) or not mine:
        raise RunError(f"the layout trained {len(mine)} steps and the control {len(control)}")
    deviations = []
    for a, b in zip(mine, control, strict=True):
        for key in ("sample_ids_hash", "loss_tokens", "samples"):
            if a[key] != b[key]:
                raise RunError(f"step {b['step']}: {key} is {a[key]} in the layout but {b[key]} in the control")
        loss = relative(_total(a), _total(b))
        deviations.append(StepDeviation(loss, relative(a["grad_norm"], b["grad_norm"])))
    return tuple(deviations)


def _total(row: Mapping[str, Any]) -> float | None:
    """All that was minimised: the loss with its auxiliary parts."""
    loss, auxiliary = row["loss"], row["aux_loss"]
    return None if loss is None or auxiliary is None else float(loss) + float(auxiliary)


def relative(mine: float | None, control: float | None) -> float:
    """The relative deviation of a number; infinite where either is not a number (null in metrics.jsonl)."""
    if mine is None or control is None:
        return math.inf
    if mine == control:
        return 0.0
    return abs(mine - control) / abs(control) if control else math.inf
