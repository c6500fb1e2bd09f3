"""Gradients that are partial after the backward (sp norms, shared kv heads, ties), summed over their axes.

    tp     norms and biases under sequence parallelism, and routers: each rank saw its part of the tokens
    etp    biases of experts that several ranks hold: each rank added them to its part of the tokens
    kv     KV heads that several tp ranks hold: each rank saw its part of the query heads
    tie    an embedding on the first stage, and on the last: as a tied head, or for prediction modules

Small ones travel together, in one all-reduce an axis; large ones on their own, without a copy. All are local
fp32 shards: tensors that are cut by then are summed in their pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weights
from scalewright.spec.volumes import SUMMED_ALONE

AXES = ("tp", "kv", "etp", "tie")


@torch.no_grad()
def sum_partial(weights: Weights, gradients: Sequence[Tensor], mesh: Mesh, *, large: int = SUMMED_ALONE) -> None:
    """Completes the trained weights' gradients (in `weights.trained()` order), in place."""
    trained = weights.trained()
    for axis in AXES:
        partial = [g for weight, g in zip(trained, gradients, strict=True) if axis in weight.placement.grad_sum]
        if not partial or mesh.group(axis) is None:  # no group for `tie` where one end alone uses it
            continue
        small = []
        for gradient in partial:
            if gradient.nbytes >= large and gradient.is_contiguous():
                all_sum(gradient, mesh, axis)
            elif gradient.numel():
                small.append(gradient)
        if small:
            flat = all_sum(torch.cat([gradient.flatten() for gradient in small]), mesh, axis)
            parts = torch.split(flat, [gradient.numel() for gradient in small])
            torch._foreach_copy_(small, [part.view_as(g) for part, g in zip(parts, small, strict=True)])
