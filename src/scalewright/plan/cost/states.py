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

from scalewright.plan.cost.columns import PipelineRank
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
from scalewright.plan.cost.table import Facts, Table
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


def elements(table: Table, facts: Facts, at: PipelineRank) -> tuple[np.ndarray, np.ndarray]:
    """Parameters on a rank: those that data parallelism shares, and those of experts."""
    u, works = table.unit, facts.works
    count = _regions(table, at)
    copy = np.where(_apart(at), works["tied"][u], 0.0)
    dense, expert = (
        sum(count[region] * works[kind][:, region][u] for region in count) for kind in ("dense", "expert")
    )
    return np.asarray(dense + copy), np.asarray(expert)


def states(table: Table, facts: Facts, at: PipelineRank, sums: Padded | None) -> States:
    """What a rank holds all step; `sums` as `padded_sums` gives them."""
    if sums is None:
        return _usual(table, facts, at)
    own = _own(table, facts, at, sums)
    return own if sums.own.all() else own.where(sums.own, _usual(table, facts, at))


@dataclass(frozen=True)
class Padded:
    """What the sums over this package's own tensors need, the same for all ranks of a pipeline."""

    own: np.ndarray  # rows that are this package's
    sharded: np.ndarray
    ranks: np.ndarray
    regions: np.ndarray  # as `padded`
    expert_ranks: np.ndarray
    experts: np.ndarray  # as `padded_experts`


def padded_sums(table: Table, facts: Facts) -> Padded | None:
    """Sums over this package's own tensors; None where a table has none of its rows."""
    own = facts.trainers["own"][table.unit] > 0
    if not own.any():
        return None
    sharded, ranks = fsdp(table)
    shared = np.where(sharded, expert_ranks(table, ranks), 1.0)
    return Padded(own, sharded, ranks, padded(table, ranks), shared, padded_experts(table, shared))


def versions(table: Table, rank: np.ndarray) -> np.ndarray:
    """Copies of its weights that a rank keeps: PipeDream's, one a forward under way (Harlap et al. 2018)."""
    return np.where((table.pp == 1) | table.schedules("flushes"), 1.0, table.pp - rank)


def _regions(table: Table, at: PipelineRank) -> dict[int, np.ndarray]:
    """How often a rank holds each region; dualpipe's ranks hold two stages, whose work `at` counts half."""
    times = np.where(table.schedules("both_ways"), 2.0, 1.0)
    first, last = times * at.first, times * at.last
    return {BEFORE: first, BLOCK: times * at.blocks, AFTER: last, EXTRA: last}


def _apart(at: PipelineRank) -> np.ndarray:
    """Where a tied head's matrix is on a rank that doesn't hold the embedding."""
    return np.asarray((at.last > 0) & (at.first == 0))


def _usual(table: Table, facts: Facts, at: PipelineRank) -> States:
    """Bytes a parameter, times the rank's share."""
    u, zero, group = table.unit, table.zero_stage, table.dp * table.cp
    dense, expert = elements(table, facts, at)
    shard = np.where(zero >= 3, group / table.dp_replicate, group)
    experts = np.maximum(shard * table.tp / (table.ep * table.etp), 1.0)
    whole, share = dense + expert, dense / shard + expert / experts
    weights, grads, adam = (facts.trainers[f"held_{name}"][u] for name in ("weights", "grads", "optimizer"))
    parameters = np.where(zero >= 3, share, whole) * weights * versions(table, at.rank)
    return States(
        np.where(offloaded(table.offload, "parameters"), 0.0, parameters),
        np.where(zero >= 2, share, whole) * grads,
        np.where(offloaded(table.offload, "optimizer"), 0.0, np.where(zero >= 1, share, whole) * adam),
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


def _own(table: Table, facts: Facts, at: PipelineRank, sums: Padded) -> States:
    """The states of ranks that are 0 along all axes but pp: their shards are largest."""
    sharded, ranks = sums.sharded, sums.ranks
    away = offloaded(table.offload, "parameters")
    dense, rest, adam = _dense(table, at, sums.regions)
    count = _regions(table, at)
    blocks, beside = count[BLOCK], count[EXTRA] * facts.works["expert"][:, EXTRA][table.unit]
    shard = dense / ranks + (blocks * sums.experts[:, EXPERTS] + beside) / sums.expert_ranks
    each, scratch, at_once, copies = (
        facts.trainers[name][table.unit] for name in ("held_optimizer", "scratch", "at_once", "copies")
    )
    outer = np.where(table.dp_replicate > 1, facts.trainers["outer_bytes"][table.unit], 0.0)  # of islands
    by_matrix = facts.trainers["by_matrix"][table.unit] > 0
    kept = FP32 * shard + np.where(sharded, 0.0, copies * shard)
    adam = adam + blocks * sums.experts[:, EXPERT_STATES] + each * beside / sums.expert_ranks
    adam_away = offloaded(table.offload, "optimizer") & ~away
    kept = np.where(adam_away & ~sharded & (copies > 0), copies * shard, kept)
    return States(
        np.where(away, 0.0, kept * versions(table, at.rank)),
        np.where(away, 0.0, FP32 * shard),
        np.where(away | adam_away, 0.0, adam) + outer * shard,
        np.zeros(len(table)),  # own_memory.py: it comes and goes in a step
        np.where(away, 0.0, scratch * np.minimum(shard - np.where(by_matrix, rest / ranks, 0.0), at_once)),
        np.where(sharded, 0.0, _errors(table, facts, at, sums)),
    )


def _errors(table: Table, facts: Facts, at: PipelineRank, sums: Padded) -> np.ndarray:
    """PowerSGD's errors and factors."""
    tied = facts.works["tied"][table.unit] > 0
    numbers, columns = (shrunk(table, tied, at, sums.regions, what) for what in (SHRUNK, SENT_Q))
    dense = kept_bytes(numbers, columns) * (table.dp * table.cp > 1)
    numbers, columns = (at.blocks * sums.experts[:, what] for what in (EXPERT_SHRUNK, EXPERT_Q))
    replicas = table.dp * table.cp * table.tp / (table.ep * table.etp)
    return np.asarray(dense + kept_bytes(numbers, columns) * (replicas > 1))


def _dense(table: Table, at: PipelineRank, regions: np.ndarray) -> tuple[np.ndarray, ...]:
    """A rank's padded elements of dense tensors, those that are in no matrix, and bytes of its states."""
    count = _regions(table, at)
    copy = _apart(at).astype(float)
    return tuple(
        np.asarray(
            sum(count[region] * regions[:, region, what] for region in count) + copy * regions[:, TIED, what]
        )
        for what in (ALL, REST, STATES)
    )
