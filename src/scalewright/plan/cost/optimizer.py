"""Seconds of the optimizer's step, and of what is kept on the host and fetched.

step      bytes of gradients, states (read and written) and weights of a rank's share / memory rate; another
          optimizer than AdamW: times the bytes of its update over AdamW's (spec/optimizers.py)
on host   the states' traffic over the host's link, and the host's slower step
offload   parameters and activations to the host and back, less what the computation hides

An optimizer of whole matrices (Muon) computes products, and its gradients take the way to an owner:

products  FLOPs of a stage's matrices / ranks that share them, at the pace of a block's own products;
          at least those of its largest matrix, which one rank computes
way       every matrix to its owner over the shards and back: two all-to-alls (parallel/owners.py)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalewright.plan.cost.activations import block_bytes
from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.work import BLOCK

WEIGHT_BYTES = 2.0  # of a parameter that comes from the host
NEW_WEIGHTS = 4.0  # bytes a parameter that the step writes
ON_HOST = 12.0  # bytes a parameter that go to the host and back: gradients, weights, and states read there


def activations_away(at: Columns) -> np.ndarray:
    """The share of a rank's blocks whose activations wait on the host."""
    some = at.trainer.offload_layers / np.maximum(at.work.blocks, 1.0)
    return np.where(at.table.offloads("activations"), 1.0, np.minimum(some, 1.0))


def optimizer(at: Columns) -> np.ndarray:
    """Seconds of a step's update: AdamW's states read and written once, times what it really moves."""
    t, c = at.table, at.c
    replicas = np.where((t.zero_stage >= 3) & ~at.islands, t.dp_replicate, 1.0)
    experts = np.maximum(at.summing / replicas * t.tp / (t.ep * t.etp), 1.0)
    mine = at.dense / np.where(t.zero_stage >= 1, at.summing / replicas, 1.0)
    mine = mine + at.expert / np.where(t.zero_stage >= 1, experts, 1.0)
    moved = mine * (at.trainer.grads + 2 * at.trainer.adamw_bytes + NEW_WEIGHTS)
    adamw = moved * c["optimizer.bytes"] / at.memory_rate
    seconds = adamw * at.trainer.update
    away = t.offloads("optimizer") | t.offloads("parameters")  # states follow parameters to the host
    if not away.any():
        return np.asarray(seconds)
    there = adamw * at.trainer.update_on_host * np.maximum(at.memory_rate / c["optimizer.host_memory"], 1.0)
    return np.asarray(np.where(away, mine * ON_HOST / _host_rate(at) + there, seconds))


def offload(at: Columns, micro: np.ndarray) -> np.ndarray:
    """Seconds of what goes to the host and back in a step that the computation doesn't hide."""
    t, activations = at.table, activations_away(at)
    if not (t.offload.any() or activations.any()):
        return np.zeros(len(t))
    kept = at.fullest * block_bytes(at)[0]
    weights = t.offloads("parameters") * 2 * WEIGHT_BYTES * (at.dense + at.expert)
    size = weights / np.maximum(at.shard, 1.0) + activations * 2 * kept
    return np.asarray(t.accumulation * np.maximum(size / _host_rate(at) - at.c["overlap.offload"] * micro, 0.0))


def _host_rate(at: Columns) -> np.ndarray:
    return np.asarray(at.chip.host_rate * at.c["optimizer.host"])


# -- whole matrices ---------------------------------------------------------------------------------


def products(at: PricedColumns) -> np.ndarray:
    """Seconds of an update's products on the fullest rank."""
    t, (shared, of_experts, largest) = at.table, at.trainer.products.T
    shards = np.where(t.zero_stage >= 1, at.shard, 1.0)
    experts = t.ep * t.etp * np.maximum(shards * t.tp / (t.ep * t.etp), 1.0)
    flops = np.maximum(at.fullest * (shared / (shards * t.tp) + of_experts / experts), largest)
    pace = at.region(at.forward, BLOCK) / np.maximum(at.region(at.prices.flops, BLOCK), 1.0)
    return np.asarray(flops * pace)


def way(at: Columns, all_to_all: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Seconds of the all-to-alls (bytes, ranks, stride) over shards; those in tp are left out, next to its own."""
    t = at.table
    if not at.trainer.products.any():
        return np.zeros(len(t))
    shards = np.where(t.zero_stage >= 1, at.shard, 1.0)
    size = (at.dense + at.expert) / np.maximum(shards, 1.0) * at.trainer.product_bytes
    return np.where(shards > 1, 2 * all_to_all(size, shards, t.tp), 0.0)
