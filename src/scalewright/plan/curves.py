"""Measured seconds as functions of size.

seconds │      ╱      linear between measured sizes, constant below the smallest,
        │  __╱        proportional to size beyond the largest
        └──────── size

Seconds of operators on a CPU, by curves that a probe measured on the machine itself (spec/hardware).

    an operator    seconds(curve of its kind, its FLOPs or bytes), forward and backward
    a region       the sum of its operators; blocks as an average block

Processes share caches, memory and the loopback: the probe ran as many of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalewright.plan.cost.work import BLOCK, REGIONS, REST, part_of, regions
from scalewright.spec.hardware.timings import BF16_MARGIN, MESSAGES, TimingCurve, Timings
from scalewright.spec.model import ModelSpec
from scalewright.spec.primitives import Operator, Sizes

LAYER_FLOPS = 2.0 * 512 * 512 * 1408  # of the layer in the trainer's rule


class Curves:
    """Seconds of each measured operation, as functions of its size."""

    def __init__(self, timings: Timings) -> None:
        self.precisions, self.share = timings.precisions, timings.share
        self._curves: dict[tuple[str, str, str | None], TimingCurve] = {
            (curve.what, curve.phase, curve.precision): curve for curve in timings.curves
        }

    def __call__(
        self, what: str, size: float | np.ndarray, phase: str = "forward", precision: str | None = None
    ) -> np.ndarray:
        """Seconds at these sizes; 0 where there is no such curve."""
        curve = self._curves.get((what, phase, precision))
        if curve is None:
            return np.zeros(np.shape(size))
        sizes, seconds = np.array(curve.sizes), np.array(curve.seconds)
        seconds = seconds if what in MESSAGES else seconds / self.share
        size = np.asarray(size, float)
        inside = np.interp(size, sizes, seconds)
        return np.asarray(np.where(size > sizes[-1], seconds[-1] * size / sizes[-1], inside))


curves_of = lru_cache(maxsize=64)(Curves)  # one object for all runs of a machine


def narrow_is_fast(timings: Timings) -> bool:
    """Whether `precision: auto` means bf16 on this machine, by the trainer's rule (machine/probe.py)."""
    curves = curves_of(timings)
    if "bf16" not in curves.precisions:
        return False
    wide, narrow = (
        [float(curves("linear", LAYER_FLOPS, phase, precision)) for phase in ("forward", "backward")]
        for precision in ("fp32", "bf16")
    )
    ratios = [a / b for a, b in zip(wide, narrow, strict=True)]
    return sum(wide) / sum(narrow) >= BF16_MARGIN and min(ratios) >= 1


def probe_words(timings: Timings) -> str:
    """One line on the probe: processes, threads, date, and the machine's load."""
    processes = f"{timings.processes} process" + ("es" if timings.processes > 1 else "")
    threads = f"{timings.threads} thread" + ("s" if timings.threads > 1 else "")
    load = "" if timings.load is None else f", load {timings.load:g}"
    return f"{processes} of {threads} timed {timings.when or 'here'}{load} ({timings.how or 'as given'})"


def beyond_timed(timings: Timings, precision: str, devices: int) -> list[str]:
    """Properties of a run that the probe didn't time."""
    beyond = []
    if precision not in timings.precisions:
        beyond.append(f"kernels in {precision} (timed: {', '.join(timings.precisions)})")
    if devices > timings.processes:
        beyond.append(f"{devices} processes (timed: {timings.processes} at once)")
    return beyond


FP32 = 4.0
WEIGHT_SHARE = 0.5  # of a product's backward: two products of the same FLOPs


@dataclass(frozen=True)
class UnitSeconds:
    """One unit's seconds of a micro-batch."""

    seconds: np.ndarray  # [REGIONS, PHASES] forward, the backward's input part, its weight part
    parts: np.ndarray  # [PARTS] forward of a block's parts
    light: float  # a block's forward without matrix products
    operators: float  # of a block


@lru_cache(maxsize=4096)
def unit_seconds(model: ModelSpec, sizes: Sizes, precision: str, timings: Timings) -> UnitSeconds:
    """The operators of a rank priced one by one."""
    curves = curves_of(timings)
    precision = precision if precision in curves.precisions else "fp32"
    seconds, parts = np.zeros((REGIONS, 3)), np.zeros(REST + 1)
    light = operators = 0.0
    for region, share, listed in regions(model, sizes):
        for operator in listed:
            forward, backward = _operator(model, operator, curves, precision)
            product = operator.shape is not None and operator.kind != "attention"
            if operator.summed:  # its gradients are made in the forward, and summed there
                summing = float(curves("residual", operator.summed, "forward", precision))
                forward, backward = forward + backward + summing, 0.0
            weight = WEIGHT_SHARE * backward * product
            seconds[region] += share * np.array([forward, backward - weight, weight])
            if region == BLOCK:
                parts[part_of(operator)] += share * forward
                light += share * (0.0 if product else forward)
                operators += share
    return UnitSeconds(seconds, parts[:REST], light, operators)


def _operator(model: ModelSpec, o: Operator, curves: Curves, precision: str) -> tuple[float, float]:
    """Seconds of an operator's forward and backward."""
    if o.kind == "attention":
        return _attention(o, curves, precision, "forward"), _attention(o, curves, precision, "backward")
    kind: str = o.kind
    size = o.read + o.written
    if o.kind in ("linear", "grouped_linear", "router", "head", "scan"):
        kind, size = "linear", o.flops
    elif o.kind == "norm" and not model.norm_type.startswith("rmsnorm"):
        kind = "layer_norm"
    elif o.kind == "activation" and model.gated:
        kind = "gated"
    elif o.kind in ("dispatch", "combine"):  # rows that are moved; what sorts them isn't timed
        kind = "residual"
    back = size
    if o.kind == "embedding":
        back = sum(weight.size for weight in o.weights) * (FP32 if precision == "fp32" else 2.0)
    return (float(curves(kind, size, "forward", precision)), float(curves(kind, back, "backward", precision)))


def _attention(o: Operator, curves: Curves, precision: str, phase: str) -> float:
    """Seconds of attention's core, between those of heads of 32 and of 64."""
    rows, keys, heads = o.shape or (1, 1, 1)
    wide = float(curves("attention", o.flops, phase, precision))
    narrow = float(curves("attention_narrow", o.flops, phase, precision)) or wide
    share = min(max(o.flops / (4.0 * rows * keys * heads) / 32 - 1, 0.0), 1.0)
    return narrow + share * (wide - narrow)
