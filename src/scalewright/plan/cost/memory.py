"""Bytes on the fullest rank, by kind: what is held all step, and what is alive at its worst moment.

    parameters, gradients, optimizer    states.py        whole or a share, as the ZeRO stage says
    activations                         activations.py   of the micro-batches under way, and the logits
    buffers                             what is gathered for compute, buckets, workspace of libraries
    other                               a block that is being rebuilt, and what the allocator can't reuse

The first pipeline rank has the most micro-batches under way, the last one the logits: both are looked at, and
the rank between that holds the most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost.activations import block_bytes, under_way
from scalewright.plan.cost.columns import PipelineRank, places
from scalewright.plan.cost.memory_band import memory_band
from scalewright.plan.cost.memory_kinds import MemoryKind, memory_kinds
from scalewright.plan.cost.optimizer import activations_away, offloaded
from scalewright.plan.cost.own_memory import own_memory
from scalewright.plan.cost.peak_moments import Kept
from scalewright.plan.cost.states import Padded, elements, padded_sums, states
from scalewright.plan.cost.table import RECOMPUTE, Facts, Table
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
GIB = float(2**30)
GATHERED = 2  # blocks whose weights FSDP holds whole at once: the one that works and the next
ON_WAY = 0.1  # of offloaded activations that are on the device all the same


@dataclass
class Memory:
    """Bytes of the worst rank by kind, of three pipeline ranks in sum, and what a device offers."""

    parts: dict[str, np.ndarray]
    peak: np.ndarray
    stages: np.ndarray  # [rows, 3 to 6]: fullest between the ends, first, last, and others where they differ
    usable: np.ndarray
    low: np.ndarray  # the band of the peak: p10 and p90 (memory_band.py)
    high: np.ndarray
    kinds: dict[MemoryKind, np.ndarray]  # the peak as allocated, as reserved, as nvidia-smi shows it

    @property
    def fits(self) -> np.ndarray:
        """Whether the worst rank is likelier than not to stay below what a device really allocates."""
        return self.peak <= self.usable


def memory(table: Table, facts: Facts, c: Constants) -> Memory:
    """The memory of every row."""
    block, sums = block_bytes(table, facts, c), padded_sums(table, facts)
    between, first, last = places(table)
    ranks = [rank_memory(table, facts, c, place, block, sums) for place in (between, first, last)]
    # less full than another between the ends, but with more under way; or with more that waits
    p, inner = table.pp, table.pp > 2
    further = [(np.minimum(1.0, p - 1), table.stages[:, 3])]
    if sums is not None and table.schedules("splits").any():
        further += [(np.maximum(p - 2, 0.0), table.stages[:, 5]), (table.stages[:, 6], between.blocks)]
    for rank, blocks in further:
        if (blocks != between.blocks).any() or (rank != between.rank).any():
            ranks.append(
                rank_memory(table, facts, c, replace(between, rank=rank, blocks=blocks), block, sums)
            )
    totals = np.stack([np.asarray(sum(parts.values())) for parts in ranks], 1)
    for column in (0, *range(3, len(ranks))):  # there is none between two
        totals[:, column] = np.where(inner, totals[:, column], 0.0)
    worst = totals.argmax(1)
    parts = {kind: np.choose(worst, [rank[kind] for rank in ranks]) for kind in KINDS}
    usable = table.gather(facts.chips["capacity"] * facts.trainers["usable"])
    peak = totals.max(1)
    kinds = memory_kinds(table, facts, parts, peak, c)
    return Memory(parts, peak, totals, usable, *memory_band(table, facts, peak), kinds)


def rank_memory(
    table: Table,
    facts: Facts,
    c: Constants,
    at: PipelineRank,
    block: tuple[np.ndarray, np.ndarray],
    sums: Padded | None,
) -> dict[str, np.ndarray]:
    """Bytes by kind on one pipeline rank.

    `block`: what one keeps, and takes to rebuild (`block_bytes`); `sums`: `padded_sums`.
    """
    u, works, trainers = table.unit, facts.works, facts.trainers
    held = states(table, facts, at, sums)
    alive = under_way(table, at.rank)
    kept, rebuilt = block
    blocks = kept * at.blocks * alive
    ends = works["kept"][:, :, 0]
    first, last = at.first > 0, at.last > 0
    edge = first * ends[:, BEFORE][u] * alive
    # the loss lets one micro-batch's logits go before the next one's come
    logits = last * ((ends[:, AFTER] + ends[:, EXTRA]) * trainers["logits"] / 4.0)[u] * c["memory.logits"]
    slack = c["memory.slack"] * (blocks + edge)
    away = activations_away(table, facts)
    usual = {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "activations": blocks * (1 - away * (1 - ON_WAY)) + edge + logits,
        "buffers": held.gathered + _buffers(table, facts, at),
        "other": rebuilt + slack,
    }
    if sums is None:
        return usual
    at = at.with_predictions(works["mtp"][u])
    own = own_memory(table, facts, at, held, sums, _own_kept(table, at, kept, rebuilt, alive), alive)
    return {kind: np.where(sums.own, own[kind], usual[kind]) for kind in KINDS}


def _own_kept(
    table: Table, at: PipelineRank, kept: np.ndarray, rebuilt: np.ndarray, alive: np.ndarray
) -> Kept:
    """What this package's own blocks keep; where every k-th recomputes, the first of each stage does.

    Offloaded blocks keep nothing but two: one that leaves or comes back while another runs.
    """
    shared = table.recompute == RECOMPUTE.index("share")
    share = np.where(shared, table.share, 1.0)
    whole = rebuilt / share
    index = np.maximum(np.ceil(at.blocks / table.virtual_stages), 1.0) - 1
    again = index % np.rint(1 / share) == 0
    last = np.where(shared, kept + rebuilt - np.where(again, whole, 0.0), kept)
    two = np.minimum(2.0 / np.maximum(alive * at.blocks, 1.0), 1.0)
    scale = np.where(offloaded(table.offload, "activations"), two, 1.0)
    return Kept(kept * scale, np.where(again, whole, 0.0), last * scale)


def _buffers(table: Table, facts: Facts, at: PipelineRank) -> np.ndarray:
    """What FSDP gathers and reduces at once, a trainer's buckets, and workspace that is always there."""
    u, trainers = table.unit, facts.trainers
    weights = (facts.works["dense"][:, BLOCK] + facts.works["expert"][:, BLOCK]) * (2.0 + trainers["grads"])
    gathered = np.where(table.zero_stage >= 3, GATHERED * weights[u], 0.0)
    shared = trainers["shared"][u]
    buffers = gathered + (trainers["buffers_gib"] * GIB)[u] * (table.devices > 1)
    if shared.any():
        dense, expert = elements(table, facts, at)
        buffers = buffers + np.where((table.dp > 1) & (table.zero_stage < 3), (dense + expert) * shared, 0.0)
    return np.asarray(buffers)
