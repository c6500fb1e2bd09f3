"""What an optimizer of whole matrices (Muon) costs beside its states: products, and the way to an owner.

products    FLOPs of a stage's matrices / ranks that share them, at the pace of a block's own products;
            at least those of its largest matrix, which one rank computes
way         every matrix to its owner over the shards and back: two all-to-alls (parallel/owners.py)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.matrix_facts import NAMES
from scalewright.plan.cost.shares import Shares
from scalewright.plan.cost.work import BLOCK


class Network(Protocol):
    """What this asks of a kind of device's transfers."""

    def all_to_all(self, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds until every rank has sent `size` bytes."""


def products(at: Columns) -> np.ndarray:
    """Seconds of an update's products on the fullest rank."""
    t = at.table
    dense, expert, largest = (at.trainer(name) for name in NAMES)
    shards = np.where(t.zero_stage >= 1, t.dp * t.cp / t.dp_replicate, 1.0)
    experts = t.ep * t.etp * np.maximum(shards * t.tp / (t.ep * t.etp), 1.0)
    flops = np.maximum(at.fullest * (dense / (shards * t.tp) + expert / experts), largest)
    pace = at.region(at.forward, BLOCK) / np.maximum(at.region(at.prices.flops, BLOCK), 1.0)
    return np.asarray(flops * pace)


def way(at: Columns, held: Shares, network: Network) -> np.ndarray:
    """Seconds of the all-to-alls over the shards; within tp they are left out, next to its own."""
    t = at.table
    if not at.trainer("products").any():
        return np.zeros(len(t))
    shards = np.where(t.zero_stage >= 1, t.dp * t.cp / t.dp_replicate, 1.0)
    size = (held.dense + held.expert) / np.maximum(shards, 1.0) * at.trainer("product_bytes")
    return np.where(shards > 1, 2 * network.all_to_all(size, shards, t.tp), 0.0)
