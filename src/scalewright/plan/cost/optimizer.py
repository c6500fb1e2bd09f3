"""Seconds of the optimizer's step, and of what is kept on the host and fetched.

step      bytes of gradients, states (read and written) and weights of a rank's share / memory rate; another
          optimizer than AdamW: times the bytes of its update over AdamW's (spec/optimizers.py)
on host   the states' traffic over the host's link, and the host's slower step
offload   parameters and activations to the host and back, less what the computation hides
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.shares import WEIGHT_BYTES, Shares
from scalewright.plan.cost.table import Facts, Table
from scalewright.plan.cost.work import BLOCK
from scalewright.plan.request import OFFLOADS

NEW_WEIGHTS = 4.0  # bytes a parameter that the step writes
HOST_MEMORY = 50e9  # bytes/s of a host's memory for each device: 400 to 600 GB/s, which eight devices share
ON_HOST = 12.0  # bytes a parameter that go to the host and back: gradients, weights, and states read there
HIDES = 0.7  # of the computation, beside which the host's link works


def offloaded(at_offload: np.ndarray, kind: str) -> np.ndarray:
    """Rows that offload this kind: optimizer, parameters or activations."""
    return np.asarray((at_offload == OFFLOADS.index(kind)) | (at_offload == OFFLOADS.index("all")))


def activations_away(t: Table, facts: Facts) -> np.ndarray:
    """The share of a rank's blocks whose activations wait on the host."""
    some = t.gather(facts.trainers["offload_layers"] / np.maximum(facts.works["blocks"], 1.0))
    return np.where(offloaded(t.offload, "activations"), 1.0, np.minimum(some, 1.0))


def optimizer(at: Columns, held: Shares) -> np.ndarray:
    """Seconds of a step's update: AdamW's states read and written once, times what it really moves."""
    t, c = at.table, at.c
    replicas = np.where((t.zero_stage >= 3) & ~at.islands, t.dp_replicate, 1.0)
    experts = np.maximum(held.group / replicas * t.tp / (t.ep * t.etp), 1.0)
    mine = held.dense / np.where(t.zero_stage >= 1, held.group / replicas, 1.0)
    mine = mine + held.expert / np.where(t.zero_stage >= 1, experts, 1.0)
    moved = mine * (at.trainer("grads") + 2 * at.trainer("adamw_bytes") + NEW_WEIGHTS)
    adamw = moved * c["optimizer.bytes"] / at.memory_rate
    seconds = adamw * at.trainer("update")
    # the states of this package's FSDP follow the parameters to the host (spec/memory.py)
    away = offloaded(t.offload, "optimizer") | (offloaded(t.offload, "parameters") & (at.trainer("own") > 0))
    if not away.any():
        return np.asarray(seconds)
    there = adamw * at.trainer("update_on_host") * np.maximum(at.memory_rate / HOST_MEMORY, 1.0)
    return np.asarray(np.where(away, mine * ON_HOST / _host_rate(at) + there, seconds))


def offload(at: Columns, held: Shares, micro: np.ndarray) -> np.ndarray:
    """Seconds of what goes to the host and back in a step that the computation doesn't hide."""
    t = at.table
    activations = activations_away(t, at.facts)
    if not (t.offload.any() or activations.any()):
        return np.zeros(len(t))
    kept = at.fullest * at.region(at.facts.works["kept"][:, :, 0], BLOCK)
    weights = offloaded(t.offload, "parameters") * 2 * WEIGHT_BYTES * (held.dense + held.expert)
    size = weights / np.maximum(held.shard, 1.0) + activations * 2 * kept
    return np.asarray(t.accumulation * np.maximum(size / _host_rate(at) - HIDES * micro, 0.0))


def _host_rate(at: Columns) -> np.ndarray:
    return np.asarray(at.chip("host_rate") * at.c["optimizer.host"])
