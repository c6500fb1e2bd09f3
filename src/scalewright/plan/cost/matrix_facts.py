"""FLOPs of an update by whole matrices (Muon), of a model: what `matrices.py` prices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import Optimizer, is_matrix, product_flops
from scalewright.spec.tensors import block_tensors

NAMES = ("products", "expert_products", "largest_product")


def matrix_facts(models: Sequence[ModelSpec], optimizers: Sequence[Optimizer]) -> dict[str, np.ndarray]:
    """FLOPs of an update of an average block, dense and experts, and of its largest matrix; else 0."""
    none = (0.0, 0.0, 0.0)
    pairs = zip(models, optimizers, strict=True)
    rows = [_of_a_block(model) if optimizer.outer_states else none for model, optimizer in pairs]
    return dict(zip(NAMES, np.array(rows).reshape(-1, 3).T, strict=True))


@lru_cache(maxsize=64)
def _of_a_block(model: ModelSpec) -> tuple[float, float, float]:
    layers = range(model.num_hidden_layers)
    matrices = [tensor for layer in layers for tensor in block_tensors(model, layer) if is_matrix(tensor)]
    expert = sum(product_flops(t.shape) for t in matrices if t.role.startswith("expert"))
    total = sum(product_flops(t.shape) for t in matrices)
    largest = max((product_flops(t.shape[-2:]) for t in matrices), default=0.0)
    return (total - expert) / len(layers), expert / len(layers), largest
