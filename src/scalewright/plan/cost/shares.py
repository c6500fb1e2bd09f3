"""Parameters of the fullest rank, and the groups of ranks that share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.work import BLOCK, EXTRA, REGIONS

WEIGHT_BYTES = 2.0  # of a parameter, as it is gathered for compute


@dataclass(frozen=True)
class Shares:
    """Parameters of the fullest rank and the groups that share them; a number a row."""

    dense: np.ndarray  # parameters that all data-parallel ranks share
    expert: np.ndarray  # parameters of experts, which fewer ranks share
    group: np.ndarray  # ranks that sum a dense gradient
    shard: np.ndarray  # ranks that FSDP shards over: the group, or one replica's part of it


def shares(at: Columns) -> Shares:
    """What the fullest rank holds, whole, and over how many ranks it may be shared."""
    t, n = at.table, at.fullest
    works = at.facts.works
    before, block, after, extra = (at.region(works["dense"], region) for region in range(REGIONS))
    ends = np.where(t.pp > 1, np.maximum(before, after + at.work("tied")), before + after)
    return Shares(
        dense=n * block + ends + extra,
        expert=n * at.region(works["expert"], BLOCK) + at.region(works["expert"], EXTRA),
        group=at.summing,
        shard=t.dp * t.cp / t.dp_replicate,
    )


def weight_bytes(at: Columns) -> np.ndarray:
    """Bytes of a parameter as it is gathered: 2, or 1 in fp8; of scalewright 4 where it computes in fp32."""
    wide = (at.trainer("own") > 0) & (at.trainer("copies") == 0)
    usual = np.where(at.trainer("fp8_gather") > 0, 1.0, WEIGHT_BYTES)
    return np.where(wide, 2 * WEIGHT_BYTES, usual)
