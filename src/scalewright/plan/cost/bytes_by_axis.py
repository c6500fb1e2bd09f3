"""Bytes that a device sends in a step, by axis, as users and the trainer's dry run count them.

    dp   gradients, and parameters where they are sharded (dp_shard and dp_replicate); a step's share of
         islands' outer steps
    tp   activations; of experts too (etp)       cp   keys and values       ep   routed tokens, there and back
    pp   activations and their gradients, each boundary, way and micro-batch; the sum of a tied head's ends

An all-reduce counts its tensor, an all-gather its output, a reduce-scatter its input, a send what is sent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank, places
from scalewright.plan.cost.exchange import expert_bytes
from scalewright.plan.cost.volumes import Volumes

AXES = ("tp", "dp", "cp", "ep", "pp")
# Axes of transfers (spec/volumes.py) -> what users call them
_AXIS = {
    **dict.fromkeys(("gradient", "fsdp", "expert", "efsdp", "dp_replicate", "islands"), "dp"),
    **dict.fromkeys(("kv", "etp"), "tp"),
    "tie": "pp",
}


def bytes_by_axis(at: Columns) -> dict[str, np.ndarray]:
    """Of the busiest pipeline rank on each axis."""
    between, first, last = places(at.table)
    second = replace(between, rank=np.minimum(1.0, at.table.pp - 1), blocks=at.table.stages[:, 3])
    volumes, inner = Volumes(at), at.table.pp > 2
    every = np.full(len(at.table), True)
    ranks = [(between, inner), (second, inner), (first, every), (last, every)]
    sizes = {axis: np.zeros(len(at.table)) for axis in AXES}
    for place, there in ranks:
        for axis, size in _bytes(volumes, place).items():
            sizes[axis] = np.maximum(sizes[axis], np.where(there, size, 0.0))
    blocks, whole = at.fullest * at.table.accumulation, at.rerun
    sizes["ep"] = np.where(volumes.own, sizes["ep"], blocks * (2 + whole) * expert_bytes(at))
    return sizes


def _bytes(volumes: Volumes, place: PipelineRank) -> dict[str, np.ndarray]:
    sizes: dict[str, np.ndarray] = {}
    sent = (
        *volumes.data_parallel(place), *volumes.tensor_parallel(place), *volumes.context_parallel(place),
        *volumes.expert_parallel(place), *volumes.pipeline(place),
    )  # fmt: skip
    for transfer in sent:
        axis = _AXIS.get(transfer.axis, transfer.axis)
        sizes[axis] = sizes.get(axis, 0.0) + np.asarray(transfer.total, dtype=float)
    return sizes
