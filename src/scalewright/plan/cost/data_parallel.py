"""Seconds that gradients and parameters take beside the computation, in a step.

ZeRO 0        all-reduce of gradients after the last backward           (Li et al. 2020)
ZeRO 1, 2     reduce-scatter of gradients, gather of parameters         (Rajbhandari et al. 2020 §7.1)
ZeRO 3, FSDP  gather before each forward and backward, reduce-scatter after it, of every micro-batch
              (§7.2; Zhao et al. 2023 §3.2), or once a step where a pipeline keeps them gathered
HSDP          and an all-reduce of a rank's own part between replicas   (Zhao et al. 2023 §3.2.2)

exposed = max(traffic - overlap · what runs meanwhile, a remainder that nothing hides)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost import collectives as x
from scalewright.plan.cost import work as w
from scalewright.plan.cost.columns import Columns

WEIGHT_BYTES = 2.0  # of a parameter, as it is gathered for compute
BACKWARD = 2 / 3  # of a micro-batch's time
LEAST = 0.05  # of the traffic that stays exposed: the last bucket


@dataclass(frozen=True)
class Shares:
    """Parameters of the fullest rank and the groups that share them; a number a row."""

    dense: np.ndarray  # parameters that all data-parallel ranks share
    expert: np.ndarray  # parameters of experts, which fewer ranks share
    group: np.ndarray  # ranks that sum a dense gradient
    shard: np.ndarray  # ranks that FSDP shards over: the group, or one replica's part of it
    experts: np.ndarray  # ranks that sum an expert's gradient


def shares(at: Columns) -> Shares:
    """What the fullest rank holds, whole, and over how many ranks it may be shared."""
    t, n = at.table, at.fullest
    before, after, extra = (at.dense(region) for region in (w.BEFORE, w.AFTER, w.EXTRA))
    ends = np.where(t.pp > 1, np.maximum(before, after + at.work("tied")), before + after)
    group = t.dp * t.cp
    return Shares(
        dense=n * at.dense(w.BLOCK) + ends + extra,
        expert=n * at.expert(w.BLOCK) + at.expert(w.EXTRA),
        group=group,
        shard=group / t.replicate,
        experts=np.maximum(group * t.tp / (t.ep * t.etp), 1.0),
    )


def data_parallel(at: Columns, held: Shares, micro: np.ndarray) -> np.ndarray:
    """Exposed seconds of a step; `micro`: seconds of a micro-batch on the slowest rank."""
    sharded = at.table.zero >= 3
    if not sharded.any():
        return _replicated(at, held, micro)
    if sharded.all():
        return _sharded(at, held, micro)
    return np.where(sharded, _sharded(at, held, micro), _replicated(at, held, micro))


def _replicated(at: Columns, held: Shares, micro: np.ndarray) -> np.ndarray:
    """ZeRO 0 to 2: gradients beside the last backward, parameters beside the next forward."""
    t, c = at.table, at.c
    pieces = np.where(at.trainer("by_block") > 0, at.fullest, 1.0)
    reduce = _both(at, held, at.trainer("grads"), held.group, pieces)
    fetch = _both(at, held, weight_bytes(at), held.group, pieces)
    whole = np.where(t.zero == 0, 2 * reduce, reduce)  # an all-reduce is a scatter and a gather
    beside = np.where(t.zero >= 1, at.trainer("overlap_zero1"), 1.0) * at.trainer("overlap_grads")
    hidden_back = micro * BACKWARD * c["overlap.dp"] * beside
    hidden_front = micro * (1 - BACKWARD) * c["overlap.dp"] * at.trainer("overlap_params")
    # this package's own ZeRO 2 reduces after every micro-batch, beside its backward
    times = np.where((at.trainer("own") > 0) & (t.zero == 2), t.micros, 1.0)
    gradients = times * np.maximum(whole - hidden_back, LEAST * whole)
    parameters = np.where(t.zero >= 1, np.maximum(fetch - hidden_front, LEAST * fetch), 0.0)
    return np.asarray((gradients + parameters) * (held.group > 1))


def _sharded(at: Columns, held: Shares, micro: np.ndarray) -> np.ndarray:
    """FSDP, block by block; what is hidden slows the computation that hides it (overlap.slow)."""
    t, c = at.table, at.c
    blocks = np.maximum(at.fullest, 1.0)
    fetch = _both(at, held, weight_bytes(at), held.shard, blocks)
    reduce = _both(at, held, at.trainer("grads"), held.shard, blocks)
    traffic = 2 * fetch + reduce
    cover = micro * c["overlap.fsdp"]
    exposed = np.maximum(traffic - cover, 0.0) + (fetch + reduce) / blocks  # the first block and the last
    slowed = c["overlap.slow"] * np.minimum(traffic, cover)
    mine = held.dense * at.trainer("grads") / np.maximum(held.shard, 1)
    across = x.all_reduce(mine, t.replicate, t.tp * held.shard, at.links)
    times = np.where(gathers_once(at) > 0, 1.0, t.micros)
    return np.where(held.shard > 1, times * (exposed + slowed), 0.0) + across * 0.5


def _both(
    at: Columns, held: Shares, width: np.ndarray | float, group: np.ndarray, pieces: np.ndarray
) -> np.ndarray:
    """Seconds of a gather or scatter: dense parameters over their group, experts' over theirs."""
    t = at.table
    found = x.gather(held.dense * width, group, t.tp, at.links, pieces)
    if not held.expert.any():
        return found
    return np.asarray(found + x.gather(held.expert * width, held.experts, t.ep * t.etp, at.links, pieces))


def weight_bytes(at: Columns) -> np.ndarray:
    """Bytes of a parameter as it is gathered: 2, or 1 in fp8; of scalewright 4 where it computes in fp32."""
    wide = (at.trainer("own") > 0) & (at.trainer("copies") == 0)
    usual = np.where(at.trainer("fp8_gather") > 0, 1.0, WEIGHT_BYTES)
    return np.where(wide, 2 * WEIGHT_BYTES, usual)


def gathers_once(at: Columns) -> np.ndarray:
    """Where FSDP keeps a stage's weights gathered for all micro-batches of a step, as pipelines do.

    Llama 3's trainer does (Dubey et al. 2024, §3.3.2); this package's own gathers for each.
    """
    return np.asarray((at.table.pp > 1) * (1 - at.trainer("own")))
