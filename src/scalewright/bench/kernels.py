"""The operators of a training step beside the roofs of the machine that they run on.

    achieved FLOP/s of linear and attention           / FLOP/s of the largest product of this benchmark
    achieved bytes/s of norms, activations, the loss  / bytes/s of a triad beyond the caches

Operators are timed as `machine.kernels` times them for the planner, at their largest size: forwards first,
then backwards. A share above 1 of a roof of memory means that the cache took part. An embedding's backward
and sums of gradients are left to the planner's own curves; CPU only, as those are.
"""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.bench.device import memory, need_torch, squares
from scalewright.machine.kernels import torch_timings

COMPUTE = ("linear", "attention", "attention_narrow")
MOVED = ("norm", "layer_norm", "gated", "activation", "rope", "residual", "loss")
LARGE = 1 << 26  # bytes of an array beyond the caches


def roofs(precision: str) -> dict[str, float]:
    """FLOP/s of a large product, and bytes/s of a triad beyond the caches."""
    product = next(squares("cpu", (precision,)))
    triad = list(memory("cpu", (LARGE,)))[-1]
    return {"flops_per_s": product["best_flops_per_s"], "bytes_per_s": triad["best_bytes_per_s"]}


def kernels(precision: str = "fp32", seconds: float = 0.05) -> Iterator[dict[str, object]]:
    """A row for each operator's forward at its largest size, with its share of the roof it is under."""
    torch, roof = need_torch(), roofs(precision)
    for curve in torch_timings(torch, precision, seconds):
        unit = "flops" if curve["what"] in COMPUTE else "bytes" if curve["what"] in MOVED else None
        if unit is None or curve["phase"] != "forward":
            continue
        rate = curve["sizes"][-1] / curve["seconds"][-1]
        yield {
            "what": curve["what"],
            "precision": precision,
            "size": curve["sizes"][-1],
            "time_s": curve["seconds"][-1],
            f"{unit}_per_s": rate,
            "bound": unit,
            "share_of_roof": rate / roof[f"{unit}_per_s"],
        }
