"""Where a layout's operators stand under the device's roof, and what the whole step reaches.

FLOP/s |       ________ peak        roof(i) = min(peak, i x bytes/s)       (Williams et al. 2009)
       |     /  o  o   +            o  an operator's forward on one rank, summed over its layers
       |   / o                      +  the step: model FLOPs a second of a device (its MFU)
       +-------------------- FLOPs a byte
"""

from __future__ import annotations

from collections import defaultdict

from scalewright.plan.predict import Prediction
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import operator_groups


def roofline(prediction: Prediction, model: ModelSpec, layout: Layout, reached: float) -> dict[str, object]:
    """Peak FLOP/s, bytes/s, (name, FLOPs a byte, share of the FLOPs) by operator; `reached`: a device's FLOP/s."""
    request = prediction.request
    flops: dict[str, float] = defaultdict(float)
    moved: dict[str, float] = defaultdict(float)
    for operator, layers in operator_groups(model, layout, request.seq_len):
        name = operator.name.split(".", 2)[-1] if operator.name.startswith("layers.") else operator.name
        flops[name] += layers * operator.flops_causal
        moved[name] += layers * (operator.read + operator.written)
    total = sum(flops.values())
    points = [
        {"name": name, "intensity": flops[name] / moved[name], "share": flops[name] / total}
        for name in flops if flops[name] > 0 and moved[name] > 0
    ]  # fmt: skip
    return {
        "peak": request.chip.peak(request.precision)[1], "bytes_per_s": request.chip.memory_rate, "points": points,
        "step": {"intensity": total / sum(moved.values()), "flops_per_s": reached},
    }  # fmt: skip
