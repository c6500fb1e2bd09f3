"""Bytes that a device sends in a step, by axis, as users and the trainer's dry run count them.

    dp   gradients, and parameters where they are sharded (dp_shard and dp_replicate)
    tp   activations; of experts too (etp)       cp   keys and values       ep   routed tokens, there and back
    pp   activations and their gradients, each boundary, way and micro-batch; the sum of a tied head's ends

An all-reduce counts its tensor, an all-gather its output, a reduce-scatter its input, a send what is sent.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.data_parallel import WEIGHT_BYTES, gathers_once, shares
from scalewright.plan.cost.exchange import context_parallel, expert_parallel, tensor_parallel
from scalewright.plan.cost.own_traffic import covered, own_bytes
from scalewright.plan.cost.pipeline import message_bytes

AXES = ("tp", "dp", "cp", "ep", "pp")


def bytes_by_axis(at: Columns) -> dict[str, np.ndarray]:
    """Bytes of the fullest rank by axis, a number a row."""
    found = _usual(at)
    rows = covered(at)
    if not rows.any():
        return found
    own = own_bytes(at)
    return {axis: np.where(rows, own[axis], found[axis]) for axis in AXES}


def _usual(at: Columns) -> dict[str, np.ndarray]:
    """Of trainers in general: the tensors that their techniques' papers exchange (see exchange.py)."""
    t, held, grads = at.table, shares(at), at.trainer("grads")
    replicated = np.where(t.zero == 0, grads, grads + WEIGHT_BYTES)
    times = np.where(gathers_once(at) > 0, 1.0, t.micros)
    gathers = np.where(t.zero >= 3, times * (2 * WEIGHT_BYTES + grads), replicated) * (held.group > 1)
    across = np.where((t.zero >= 3) & (t.replicate > 1), grads / held.shard, 0.0)  # between replicas, once
    blocks, whole = at.fullest * t.micros, at.rerun[0]
    tie = np.where((t.pp > 1) & ~t.schedules("folded"), at.work("tied") * grads, 0.0)
    return {
        "tp": blocks * (2 + whole) * tensor_parallel(at).bytes,
        "dp": (held.dense + held.expert) * (gathers + across),
        "cp": blocks * (3 + whole) * context_parallel(at).bytes,
        "ep": blocks * (2 + whole) * expert_parallel(at).bytes,
        "pp": np.where(t.pp > 1, 2 * at.visits * message_bytes(at) * t.micros, 0.0) + tie,
    }
