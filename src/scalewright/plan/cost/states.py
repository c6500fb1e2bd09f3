"""Weights, gradients and optimizer states of a pipeline rank, in bytes.

    trainers in general    n · bytes a parameter (plan/data/frameworks.yaml: held), each whole or a share,
                           as the ZeRO stage says (Rajbhandari et al. 2020 §5)
    this package's own     spec/memory.py, to the byte: fp32 shards padded in their rows; what ZeRO 1 and 2
                           hold whole from a forward to the step's end lies beside them, among the buffers

n: parameters on the rank after tensor, pipeline and expert parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.optimizer import offloaded
from scalewright.plan.cost.padded import (
    ALL,
    EXPERT_Q,
    EXPERT_SHRUNK,
    EXPERT_STATES,
    EXPERTS,
    REST,
    SENT_Q,
    SHRUNK,
    STATES,
    TIED,
    expert_ranks,
    padded,
    padded_experts,
    shrunk,
)
from scalewright.plan.cost.table import Table
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.spec.compress import kept_bytes
from scalewright.spec.memory import FP32


@dataclass(frozen=True)
class States:
    """Bytes of a rank, a number a row.

    `gathered`: whole copies beside shards. `scratch`: what an update makes and frees. `errors`: what
    compressed gradients leave for the next step.
    """

    parameters: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    gathered: np.ndarray
    scratch: np.ndarray
    errors: np.ndarray

    def where(self, rows: np.ndarray, other: States) -> States:
        """These in `rows`, the other's elsewhere."""
        names = [part.name for part in fields(self)]
        return States(*(np.where(rows, getattr(self, name), getattr(other, name)) for name in names))


def elements(at: Columns, place: PipelineRank) -> tuple[np.ndarray, np.ndarray]:
    """Parameters on a rank: those that data parallelism shares, and those of experts."""
    count = _regions(at.table, place)
    copy = np.where(_apart(place), at.work.tied, 0.0)
    dense, expert = (
        sum(count[region] * at.region(sizes, region) for region in count)
        for sizes in (at.facts.works.dense, at.facts.works.expert)
    )
    return np.asarray(dense + copy), np.asarray(expert)


def states(at: Columns, place: PipelineRank, sums: Padded | None) -> States:
    """What a rank holds all step; `sums` as `padded_sums` gives them."""
    if sums is None:
        return _usual(at, place)
    own = _own(at, place, sums)
    return own if sums.own.all() else own.where(sums.own, _usual(at, place))


@dataclass(frozen=True)
class Padded:
    """What the sums over this package's own tensors need, the same for all ranks of a pipeline."""

    own: np.ndarray  # rows that are this package's
    sharded: np.ndarray
    ranks: np.ndarray
    regions: np.ndarray  # as `padded`
    expert_ranks: np.ndarray
    experts: np.ndarray  # as `padded_experts`


def padded_sums(at: Columns) -> Padded | None:
    """Sums over this package's own tensors; None where a table has none of its rows."""
    table, own = at.table, at.trainer.own > 0
    if not own.any():
        return None
    sharded, ranks = fsdp(table)
    shared = np.where(sharded, expert_ranks(table, ranks), 1.0)
    return Padded(own, sharded, ranks, padded(table, ranks), shared, padded_experts(table, shared))


def versions(table: Table, rank: np.ndarray) -> np.ndarray:
    """Copies of its weights that a rank keeps: PipeDream's, one a forward under way (Harlap et al. 2018)."""
    return np.where((table.pp == 1) | table.schedules("flushes"), 1.0, table.pp - rank)


def _regions(table: Table, place: PipelineRank) -> dict[int, np.ndarray]:
    """How often a rank holds each region; dualpipe's ranks hold two stages, each half in `place`."""
    times = np.where(table.schedules("both_ways"), 2.0, 1.0)
    first, last = times * place.first, times * place.last
    return {BEFORE: first, BLOCK: times * place.blocks, AFTER: last, EXTRA: last}


def _apart(place: PipelineRank) -> np.ndarray:
    """Where a tied head's matrix is on a rank that doesn't hold the embedding."""
    return np.asarray((place.last > 0) & (place.first == 0))


def _usual(at: Columns, place: PipelineRank) -> States:
    """Bytes a parameter, times the rank's share."""
    table = at.table
    zero, group = table.zero_stage, table.dp * table.cp
    dense, expert = elements(at, place)
    shard = np.where(zero >= 3, group / table.dp_replicate, group)
    experts = np.maximum(shard * table.tp / (table.ep * table.etp), 1.0)
    whole, share = dense + expert, dense / shard + expert / experts
    grads, held = at.trainer.held_grads, np.where(zero >= 1, share, whole) * at.trainer.held_optimizer
    parameters = np.where(zero >= 3, share, whole) * at.trainer.held_weights * versions(table, place.rank)
    return States(
        np.where(offloaded(table.offload, "parameters"), 0.0, parameters),
        np.where(zero >= 2, share, whole) * grads,
        np.where(offloaded(table.offload, "optimizer"), 0.0, held),
        # FSDP in a pipeline gathers and reduces once a step (volumes.py): both stay whole
        np.where((zero >= 3) & (table.pp > 1), whole * (2.0 + grads), 0.0),
        np.zeros(len(table)),
        np.zeros(len(table)),
    )


# -- this package's own ---------------------------------------------------------------------------


def fsdp(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose parameters are FSDP's (spec/memory.py: `is_sharded`), and the ranks that share them."""
    ranks = table.dp * table.cp / table.dp_replicate
    sharded = (table.zero_stage >= 1) & ((ranks > 1) | offloaded(table.offload, "parameters"))
    return sharded, np.where(sharded, ranks, 1.0)


def _own(at: Columns, place: PipelineRank, sums: Padded) -> States:
    """The states of ranks that are 0 along all axes but pp: their shards are largest."""
    table, trainer, sharded, ranks = at.table, at.trainer, sums.sharded, sums.ranks
    away = offloaded(table.offload, "parameters")
    dense, rest, adam = _dense(table, place, sums.regions)
    count = _regions(table, place)
    blocks, beside = count[BLOCK], count[EXTRA] * at.region(at.facts.works.expert, EXTRA)
    shard = dense / ranks + (blocks * sums.experts[:, EXPERTS] + beside) / sums.expert_ranks
    copies = trainer.copies
    outer = np.where(table.dp_replicate > 1, trainer.outer_bytes, 0.0)  # of islands
    own_rest = np.where(trainer.by_matrix > 0, rest / ranks, 0.0)
    kept = FP32 * shard + np.where(sharded, 0.0, copies * shard)
    adam = (
        adam + blocks * sums.experts[:, EXPERT_STATES] + trainer.held_optimizer * beside / sums.expert_ranks
    )
    adam_away = offloaded(table.offload, "optimizer") & ~away
    kept = np.where(adam_away & ~sharded & (copies > 0), copies * shard, kept)
    return States(
        np.where(away, 0.0, kept * versions(table, place.rank)),
        np.where(away, 0.0, FP32 * shard),
        np.where(away | adam_away, 0.0, adam) + outer * shard,
        np.zeros(len(table)),  # own_memory.py: it comes and goes in a step
        np.where(away, 0.0, trainer.scratch * np.minimum(shard - own_rest, trainer.at_once)),
        np.where(sharded, 0.0, _errors(at, place, sums)),
    )


def _errors(at: Columns, place: PipelineRank, sums: Padded) -> np.ndarray:
    """PowerSGD's errors and factors."""
    table, tied = at.table, at.work.tied > 0
    numbers, columns = (shrunk(table, tied, place, sums.regions, what) for what in (SHRUNK, SENT_Q))
    dense = kept_bytes(numbers, columns) * (table.dp * table.cp > 1)
    numbers, columns = (place.blocks * sums.experts[:, what] for what in (EXPERT_SHRUNK, EXPERT_Q))
    replicas = table.dp * table.cp * table.tp / (table.ep * table.etp)
    return np.asarray(dense + kept_bytes(numbers, columns) * (replicas > 1))


def _dense(table: Table, place: PipelineRank, regions: np.ndarray) -> tuple[np.ndarray, ...]:
    """A rank's padded elements of dense tensors, those that are in no matrix, and bytes of its states."""
    count = _regions(table, place)
    copy = _apart(place).astype(float)
    return tuple(
        np.asarray(
            sum(count[region] * regions[:, region, what] for region in count) + copy * regions[:, TIED, what]
        )
        for what in (ALL, REST, STATES)
    )
