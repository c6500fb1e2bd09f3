"""Does a layout compute what one device computes? Both train the same steps; their numbers are compared.

    loss, gradient norm   step by step, with the run's own optimizer     |mine - control| / |control|
    weights               after the last step, with SGD                  the worst tensor, by its largest

fp32 sums in another order differ by about 1e-7; ten steps carry that on. A wrong layout (a gradient summed
once too often, a norm that isn't reduced) is off by 1e-3 or more within two steps, so the tolerance need not
be fine-tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalewright.parity.ranks import Left, Runs
from scalewright.parity.setup import set_up
from scalewright.spec.errors import RunError
from scalewright.spec.run import RunSpec
from scalewright.train.saved import training_rows, weights_deviation

# precision -> (tolerance, the reason for it)
TOLERANCES: dict[str, tuple[float, str]] = {
    "fp32": (1e-5, "sums in another order differ by 1e-7 a step in fp32; ten steps and a factor of ten"),
    "tf32": (5e-3, "TF32 keeps 11 bits of a product's factors (5e-4); other shapes round otherwise"),
    "bf16": (2e-2, "bf16 keeps 8 bits (4e-3), and another layout rounds other partial sums"),
}


@dataclass(frozen=True)
class StepDeviation:
    """One step's relative deviations from the control."""

    loss_rel: float
    grad_norm_rel: float


@dataclass(frozen=True)
class Parity:
    """How far a layout is from one device, and whether that is rounding."""

    control: dict[str, Any]
    layout: dict[str, Any]
    steps: tuple[StepDeviation, ...]
    weights_rel: float
    worst_tensor: str
    tolerance: float
    reason: str  # for the tolerance
    shrunk: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """The largest deviation of all."""
        found = [number for step in self.steps for number in (step.loss_rel, step.grad_norm_rel)]
        return max([*found, self.weights_rel])

    @property
    def ok(self) -> bool:
        """Whether every deviation is within the tolerance."""
        return self.worst <= self.tolerance

    def dump(self) -> dict[str, Any]:
        """Plain data, with the keys of the command's answer."""
        return {
            "control": self.control,
            "layout": self.layout,
            "steps": [{"loss_rel": s.loss_rel, "grad_norm_rel": s.grad_norm_rel} for s in self.steps],
            "weights_rel": self.weights_rel,
            "worst": self.worst,
            "tolerance": self.tolerance,
            "ok": self.ok,
            "reason": self.reason,
            "worst_tensor": self.worst_tensor,
            "shrunk": list(self.shrunk),
            "notes": list(self.notes),
        }


def parity(
    run: RunSpec,
    *,
    steps: int = 10,
    device: str = "cpu",
    tolerance: float | None = None,
    micro_batch: int | None = None,
    runs: Runs | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Parity:
    """Compares a run's layout with one device, on CPU processes or on this machine's GPUs.

    `micro_batch` is the control's (default: the layout's); `runs` shares controls between calls; `tell` hears
    what is going on. Raises UserError for a layout that can't be trained, RunError when a run failed.
    """
    setup = set_up(run, device=device, steps=steps, micro_batch=micro_batch)
    given, reason = TOLERANCES.get(setup.layout.layout.precision, TOLERANCES["fp32"])
    if tolerance is not None:
        given, reason = tolerance, "as asked"

    def compared(made: Runs) -> tuple[Left, Left]:
        world = setup.layout.layout.devices
        tell(f"training the layout: {steps} steps on {world} rank{'s' if world > 1 else ''}, twice")
        mine = made.train(setup.layout)
        tell(f"training the control: {steps} steps on one device, twice")
        return mine, made(setup.control)

    def measured(mine: Left, control: Left) -> Parity:
        weights = weights_deviation(mine.sgd, control.sgd)
        return Parity(
            control=setup.control.layout.dump(),
            layout=setup.layout.layout.dump(),
            steps=step_deviations(training_rows(mine.own), training_rows(control.own)),
            weights_rel=weights.value,
            worst_tensor=weights.tensor,
            tolerance=given,
            reason=reason,
            shrunk=setup.shrunk,
            notes=setup.notes,
        )

    if runs is not None:
        return measured(*compared(runs))
    with Runs() as made:
        return measured(*compared(made))


def step_deviations(mine: list[dict[str, Any]], control: list[dict[str, Any]]) -> tuple[StepDeviation, ...]:
    """The deviations of every step; raises RunError when the two runs saw other data."""
    if len(mine) != len(control) or not mine:
        raise RunError(f"the layout trained {len(mine)} steps and the control {len(control)}")
    found = []
    for a, b in zip(mine, control, strict=True):
        for key in ("sample_ids_hash", "loss_tokens", "samples"):
            if a[key] != b[key]:
                raise RunError(
                    f"step {b['step']}: {key} is {a[key]} in the layout but {b[key]} in the control"
                )
        loss = relative(_total(a), _total(b))
        found.append(StepDeviation(loss, relative(a["grad_norm"], b["grad_norm"])))
    return tuple(found)


def _total(row: dict[str, Any]) -> float | None:
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
