"""Seconds of operators on a CPU, by curves that a probe measured on the machine itself (spec/hardware).

    an operator    seconds(curve of its kind, its FLOPs or bytes), forward and backward
    a region       the sum of its operators; blocks as an average block

Processes share caches, memory and the loopback: the probe ran as many of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalewright.plan.cost.work import BLOCK, REGIONS, REST, part_of, regions
from scalewright.plan.curves import Curves, curves_of
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.model import ModelSpec
from scalewright.spec.primitives import Operator, Sizes

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
    return float(curves(kind, size, "forward", precision)), float(curves(kind, back, "backward", precision))


def _attention(o: Operator, curves: Curves, precision: str, phase: str) -> float:
    """Seconds of attention's core, between those of heads of 32 and of 64."""
    rows, keys, heads = o.shape or (1, 1, 1)
    wide = float(curves("attention", o.flops, phase, precision))
    narrow = float(curves("attention_narrow", o.flops, phase, precision)) or wide
    share = min(max(o.flops / (4.0 * rows * keys * heads) / 32 - 1, 0.0), 1.0)
    return narrow + share * (wide - narrow)
