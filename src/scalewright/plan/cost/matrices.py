"""What an optimizer of whole matrices (Muon) costs beside its states: products, and the way to an owner.

products    FLOPs of a stage's matrices / ranks that share them, at the pace of a block's own products;
            at least those of its largest matrix, which one rank computes
way         every matrix to its owner over the shards and back: two all-to-alls (parallel/owners.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scalewright.plan.cost import work as w
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import Optimizer, is_matrix, product_flops
from scalewright.spec.tensors import block_tensors

if TYPE_CHECKING:  # they are made of these facts
    from scalewright.plan.cost.columns import Columns
    from scalewright.plan.cost.shares import Shares


class Network(Protocol):
    """What this asks of a kind of device's transfers."""

    def all_to_all(self, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds until every rank has sent `size` bytes."""


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


def products(at: Columns) -> np.ndarray:
    """Seconds of an update's products on the fullest rank."""
    t = at.table
    dense, expert, largest = (at.trainer(name) for name in NAMES)
    shards = np.where(t.zero_stage >= 1, t.dp * t.cp / t.dp_replicate, 1.0)
    experts = t.ep * t.etp * np.maximum(shards * t.tp / (t.ep * t.etp), 1.0)
    flops = np.maximum(at.fullest * (dense / (shards * t.tp) + expert / experts), largest)
    pace = at.region(at.forward, w.BLOCK) / np.maximum(at.region(at.prices.flops, w.BLOCK), 1.0)
    return np.asarray(flops * pace)


def way(at: Columns, held: Shares, network: Network) -> np.ndarray:
    """Seconds of the all-to-alls over the shards; within tp they are left out, next to its own."""
    t = at.table
    if not at.trainer("products").any():
        return np.zeros(len(t))
    shards = np.where(t.zero_stage >= 1, t.dp * t.cp / t.dp_replicate, 1.0)
    size = (held.dense + held.expert) / np.maximum(shards, 1.0) * at.trainer("product_bytes")
    return np.where(shards > 1, 2 * network.all_to_all(size, shards, t.tp), 0.0)
