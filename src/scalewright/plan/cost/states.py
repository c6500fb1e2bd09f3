"""Weights, gradients and optimizer states of a pipeline rank, in bytes.

    trainers in general    n · bytes a parameter (plan/data/frameworks.yaml: held), each whole or a share,
                           as the ZeRO stage says (Rajbhandari et al. 2020 §5)
    this package's own     spec/memory.py, to the byte: fp32 shards padded in their rows; what ZeRO 1 and 2
                           hold whole from a forward to the step's end lies beside them, among the buffers

n: parameters on the rank after tensor, pipeline and expert parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.padded import TIED
from scalewright.plan.cost.table import Table
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.spec.compress import kept_bytes
from scalewright.spec.memory import FP32


@dataclass(frozen=True)
class States:
    """Bytes of a rank, a number a row."""

    parameters: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    gathered: np.ndarray  # whole copies beside shards
    scratch: np.ndarray  # what an update makes and frees
    errors: np.ndarray  # what compressed gradients leave for the next step

    def where(self, rows: np.ndarray, other: States) -> States:
        """These in `rows`, the other's elsewhere."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return States(*(np.where(rows, mine, theirs) for mine, theirs in pairs))


def elements(at: Columns, place: PipelineRank) -> tuple[np.ndarray, np.ndarray]:
    """Parameters on a rank: those that data parallelism shares, and those of experts."""
    count = _regions(at.table, place)
    copy = np.where(_apart(place), at.work.tied, 0.0)
    dense, expert = (
        sum(count[region] * at.region(sizes, region) for region in count)
        for sizes in (at.facts.works.dense, at.facts.works.expert)
    )
    return np.asarray(dense + copy), np.asarray(expert)


def states(at: Columns, place: PipelineRank) -> States:
    """What a rank holds all step."""
    if not at.own.any():
        return _usual(at, place)
    ours = _own(at, place)
    return ours if at.own.all() else ours.where(at.own, _usual(at, place))


def versions(table: Table, rank: np.ndarray) -> np.ndarray:
    """Copies of its weights that a rank keeps: PipeDream's, one a forward under way (Harlap et al. 2018)."""
    return np.where((table.pp == 1) | table.schedules("flushes"), 1.0, table.pp - rank)


def _regions(table: Table, place: PipelineRank) -> dict[int, np.ndarray]:
    """How often a rank holds each region; dualpipe's ranks hold two stages, each half in `place`."""
    times = np.where(table.schedules("both_ways"), 2.0, 1.0)
    first, last = times * place.first, times * place.last
    return {BEFORE: first, BLOCK: times * place.blocks, AFTER: last, EXTRA: last}


def _apart(place: PipelineRank) -> np.ndarray:
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
    away, states_away = table.offloads("parameters"), table.offloads("optimizer")
    grads_away = away | (states_away & (zero >= 2) & (at.trainer.grads_follow > 0))
    parameters = np.where(zero >= 3, share, whole) * at.trainer.held_weights * versions(table, place.rank)
    return States(
        np.where(away, 0.0, parameters),
        np.where(grads_away, 0.0, np.where(zero >= 2, share, whole) * grads),
        np.where(away | states_away, 0.0, held),
        # FSDP in a pipeline gathers and reduces once a step (volumes.py): both stay whole
        np.where((zero >= 3) & (table.pp > 1), whole * (2.0 + grads), 0.0),
        np.where(away | states_away, 0.0, np.where(zero >= 1, share, whole) * at.trainer.cast_grads),
        np.zeros(len(table)),
    )


# -- this package's own ---------------------------------------------------------------------------


def _own(at: Columns, place: PipelineRank) -> States:
    """The states of ranks that are 0 along all axes but pp: their shards are largest."""
    table, trainer, padded, experts = at.table, at.trainer, at.padded, at.padded.experts
    sharded, ranks = padded.sharded, padded.ranks
    away = table.offloads("parameters")
    count, copy = _regions(table, place), _apart(place).astype(float)
    dense, rest, adam = (
        sum(count[region] * sums[region] for region in count) + copy * sums[TIED]
        for sums in (padded.regions.elements, padded.regions.rest, padded.regions.states)
    )
    blocks, beside = count[BLOCK], count[EXTRA] * at.region(at.facts.works.expert, EXTRA)
    shard = dense / ranks + (blocks * experts.elements + beside) / padded.expert_ranks
    copies = trainer.copies
    outer = np.where(table.dp_replicate > 1, trainer.outer_bytes, 0.0)  # of islands
    own_rest = np.where(trainer.by_matrix > 0, rest / ranks, 0.0)
    kept = FP32 * shard + np.where(sharded, 0.0, copies * shard)
    adam = adam + blocks * experts.states + trainer.held_optimizer * beside / padded.expert_ranks
    adam_away = table.offloads("optimizer") & ~away
    kept = np.where(adam_away & ~sharded & (copies > 0), copies * shard, kept)
    return States(
        np.where(away, 0.0, kept * versions(table, place.rank)),
        np.where(away, 0.0, FP32 * shard),
        np.where(away | adam_away, 0.0, adam) + outer * shard,
        np.zeros(len(table)),  # own_memory.py: it comes and goes in a step
        np.where(away, 0.0, trainer.scratch * np.minimum(shard - own_rest, trainer.at_once)),
        np.where(sharded, 0.0, _errors(at, place)),
    )


def _errors(at: Columns, place: PipelineRank) -> np.ndarray:
    table, regions, experts = at.table, at.padded.regions, at.padded.experts
    sent = kept_bytes(shrunk(at, place, regions.shrunk), shrunk(at, place, regions.sent_q))
    dense = sent * (table.dp * table.cp > 1)
    sent = kept_bytes(place.blocks * experts.shrunk, place.blocks * experts.sent_q)
    replicas = table.dp * table.cp * table.tp / (table.ep * table.etp)
    return np.asarray(dense + sent * (replicas > 1))


def shrunk(at: Columns, place: PipelineRank, sums: np.ndarray, counted: np.ndarray | float = 0) -> np.ndarray:
    """One sum (shrunk, sent_p, sent_q) of a pipeline rank's dense gradients that PowerSGD compresses.

    Both ends of a tied head on two ranks have yet to be summed, and are sent whole. `counted`: blocks of prediction
    modules that are among the blocks of `place` already.
    """
    table, first, last = at.table, place.first > 0, place.last > 0
    whole = (at.work.tied > 0) & (table.pp > 1) & ~table.schedules("folded") & first
    modules = sums[EXTRA] - counted * sums[BLOCK]
    ends = first * sums[BEFORE] + last * (sums[AFTER] + modules)
    return np.asarray(place.blocks * sums[BLOCK] + ends - whole * sums[TIED])
