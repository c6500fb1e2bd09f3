"""Bytes on the fullest rank, by kind: what is held all step, and what is alive at its worst moment.

    parameters, gradients, optimizer    states.py        whole or a share, as the ZeRO stage says
    activations                         activations.py   of the micro-batches under way, and the logits
    buffers                             what is gathered for compute, buckets, workspace of libraries
    other                               a block that is being rebuilt, and what the allocator can't reuse

The first pipeline rank has the most micro-batches under way, the last one the logits: both are looked at, and the rank
between that holds the most. Three numbers are all called memory: what tensors take, the allocator holds, and the driver
shows.

    allocated   the peak, and what is freed late         torch.cuda.max_memory_allocated
    reserved    + what has gone at that moment, and      torch.cuda.max_memory_reserved
                pieces that can't be reused
    smi         + the device's context and kernels, and  nvidia-smi, rocm-smi
                NCCL's buffers of every group of ranks

A measured number is compared with the one of its kind; a table that names none is taken for allocated. Only GPUs have
the latter two: elsewhere they are the first. How sure a peak is, and the risk that follows:

    p10 = peak · exp(-1.2816 s)        usable >= p90    fits         usable >= peak   likely
    p90 = peak · exp(1.2816 s)         usable >= p10    unlikely     less             no

s is the trainer's `memory_spread` in data/frameworks.yaml: the root mean square of log(measured / predicted) over the
runs whose memory is in the table, and a wider one for a trainer that has none there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalewright.plan.cost.activations import block_bytes, gathered, own_kept, under_way
from scalewright.plan.cost.columns import Columns, PipelineRank, places
from scalewright.plan.cost.optimizer import activations_away
from scalewright.plan.cost.own_memory import own_memory
from scalewright.plan.cost.states import elements, states
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.plan.request import OFFLOADS

MemoryKind = Literal["allocated", "reserved", "smi"]
Risk = Literal["fits", "likely", "unlikely", "no"]
SIGMA = 1.2816  # of a normal: 10% lie below -1.2816 s
COMES_AND_GOES = ("activations", "buffers", "other")
OFFLOADED = ("parameters", "gradients", "optimizer", "activations")  # kinds of memory that offload moves
IDLE = "idle"  # freed at the highest moment, but not by the allocator, whose blocks of one size serve no other
IN_NOTES: dict[str, MemoryKind]  # words of a row's notes, and the kind of memory that they mean
IN_NOTES = {"nvidia-smi": "smi", "rocm-smi": "smi", "hip mem": "smi", "max reserved": "reserved"}
KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
GIB = float(2**30)
GATHERED = 2  # blocks (or weights) that ZeRO-3 holds whole at once: the one that works and the next
ON_WAY = 2  # blocks on the device all the same where the host keeps them: one that leaves or comes, one that runs


@dataclass
class Memory:
    """Bytes of the worst rank by kind, of three pipeline ranks in sum, and what a device offers."""

    parts: dict[str, np.ndarray]
    peak: np.ndarray
    stages: np.ndarray  # [rows, 3 to 6]: fullest between the ends, first, last, and others where they differ
    usable: np.ndarray
    low: np.ndarray  # the band of the peak: p10 and p90
    high: np.ndarray
    kinds: dict[MemoryKind, np.ndarray]  # the peak as allocated, as reserved, as nvidia-smi shows it

    @property
    def fits(self) -> np.ndarray:
        """Whether the worst rank is likelier than not to stay below what a device really allocates."""
        return self.peak <= self.usable


def memory(at: Columns) -> Memory:
    """The memory of every row."""
    table, block = at.table, block_bytes(at)
    between, first, last = places(table)
    ranks = [rank_memory(at, place, block) for place in (between, first, last)]
    # less full than another between the ends, but with more under way; or with more that waits
    p, inner = table.pp, table.pp > 2
    further = [(np.minimum(1.0, p - 1), table.stages[:, 3])]
    if at.own.any() and table.schedules("splits").any():
        further += [(np.maximum(p - 2, 0.0), table.stages[:, 5]), (table.stages[:, 6], between.blocks)]
    for rank, blocks in further:
        if (blocks != between.blocks).any() or (rank != between.rank).any():
            ranks.append(rank_memory(at, replace(between, rank=rank, blocks=blocks), block))
    totals = np.stack([np.asarray(sum(parts[kind] for kind in KINDS)) for parts in ranks], 1)
    for column in (0, *range(3, len(ranks))):  # there is none between two
        totals[:, column] = np.where(inner, totals[:, column], 0.0)
    worst = totals.argmax(1)
    parts = {kind: np.choose(worst, [rank[kind] for rank in ranks]) for kind in (*KINDS, IDLE)}
    idle = parts.pop(IDLE)
    usable = at.chip.capacity * at.trainer.usable
    peak = totals.max(1)
    return Memory(parts, peak, totals, usable, *memory_band(at, peak), memory_kinds(at, parts, peak, idle))


def first_rank(at: Columns) -> dict[str, np.ndarray]:
    """Bytes by kind on the first pipeline rank alone: the worst has at least as many in all."""
    return rank_memory(at, places(at.table)[1], block_bytes(at), few=True)


def host_bytes(at: Columns, usage: Memory, asked: np.ndarray | bool = True) -> np.ndarray:
    """Bytes of host memory for each device that the rows of the mask `asked` need for what they offload, and for
    snapshots: of a node's ranks in the mean."""
    rows, host = np.flatnonzero(asked & (at.table.offload != OFFLOADS.index("none"))), _snapshots(at)
    if len(rows):
        there = _resident(at, rows)
        parts = memory(there).parts
        moved = sum(np.maximum(parts[kind] - usage.parts[kind][rows], 0.0) for kind in OFFLOADED)
        host[rows] += moved * np.where(there.own, 1.0, at.c["memory.host"])
    return host


def least_host_bytes(at: Columns) -> np.ndarray:
    """What they need at least: snapshots, and optimizer states of a rank with the fewest blocks and no end, and weights
    if they go."""
    nothing = np.zeros(len(at.table))
    place = PipelineRank(nothing, at.table.stages[:, (0, 1, 2, 3, 5)].min(1), nothing, nothing)
    here, there = states(at, place), states(_resident(at, np.arange(len(nothing))), place)
    moved = there.optimizer - here.optimizer + np.where(here.parameters == 0, there.parameters, 0.0)
    return np.asarray(moved * np.where(at.own, 1.0, at.c["memory.host"]) + _snapshots(at))


def _snapshots(at: Columns) -> np.ndarray:
    table = at.table
    return np.asarray(at.work.on_hosts / (table.dp * table.cp * table.tp * table.pp))


def _resident(at: Columns, rows: np.ndarray) -> Columns:
    """The rows as they would be if nothing were offloaded."""
    table = at.table.take(rows)
    table.offload = np.full(len(rows), OFFLOADS.index("none"))
    return Columns(table, at.facts, at.c)


def rank_memory(
    at: Columns, place: PipelineRank, block: tuple[np.ndarray, np.ndarray], few: bool = False
) -> dict[str, np.ndarray]:
    """Bytes by kind on one pipeline rank. `block`: what one keeps, and takes to rebuild (`block_bytes`); `few`: at a
    few moments alone, which bound them."""
    table = at.table
    held, alive = states(at, place), under_way(table, place.rank)
    kept, rebuilt = block
    if at.own.any():
        whole = place.with_predictions(at.work.mtp)
        ours = own_memory(at, whole, held, own_kept(table, whole, kept, rebuilt, alive), alive, few) | {
            IDLE: 0.0 * alive
        }
        if at.own.all():
            return ours
    blocks = kept * np.maximum(place.blocks * (1 - activations_away(at)), np.minimum(place.blocks, ON_WAY)) * alive
    first, last = place.first > 0, place.last > 0
    edge = first * at.kept(BEFORE) * alive
    # the loss lets one micro-batch's logits go before the next one's come
    logits = last * (at.kept(AFTER) + at.kept(EXTRA)) * at.trainer.logits / 4.0
    # the logits have gone when a block is rebuilt, all activations when the optimizer casts its gradients
    moment = np.maximum(np.maximum(logits, rebuilt), held.scratch - blocks - edge)
    usual = {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "activations": blocks + edge + logits,
        "buffers": held.gathered + _buffers(at, place),
        "other": moment - logits,
        IDLE: logits + rebuilt + held.scratch - moment,
    }
    if not at.own.any():
        return usual
    return {kind: np.where(at.own, ours[kind], usual[kind]) for kind in usual}


def _buffers(at: Columns, place: PipelineRank) -> np.ndarray:
    """What ZeRO-3 gathers and reduces at once, a trainer's buckets, and workspace that is always there."""
    table, works, trainer, shared = at.table, at.facts.works, at.trainer, at.trainer.shared
    blocks = at.region(works.dense + works.expert, BLOCK) * GATHERED * (trainer.weight_bytes + trainer.grads)
    # weight by weight: a gradient has gone before the next one is whole
    weights = at.kept(BLOCK, "weight") * (GATHERED * trainer.weight_bytes + trainer.grads)
    buffers = np.where(trainer.by_weight > 0, np.minimum(weights, blocks), blocks) * (table.zero_stage >= 3)
    buffers = buffers + trainer.buffers_gib * GIB * (table.devices > 1)
    if shared.any():
        dense, expert = elements(at, place)
        buffers = buffers + np.where(
            (table.dp > 1) & (table.pp == 1) & (table.zero_stage < 3), (dense + expert) * shared, 0.0
        )
    return np.asarray(buffers)


def memory_kinds(
    at: Columns, parts: dict[str, np.ndarray], peak: np.ndarray, idle: np.ndarray
) -> dict[MemoryKind, np.ndarray]:
    """Bytes of the worst rank, by kind of number; what goes when memory runs short is in none but these."""
    t, c, gpu, trainer = at.table, at.c, at.chip.gpu > 0, at.trainer
    late = trainer.gathered_late * (t.pp == 1) * gathered(at) * at.work.blocks
    peak = np.maximum(peak, np.minimum(peak + late, at.chip.capacity * trainer.usable))
    reserved = peak + idle + c["memory.pieces"] * sum(parts[kind] for kind in COMES_AND_GOES)
    axes = (t.tp, t.cp, t.pp, t.dp * t.cp, t.ep, t.devices)
    smi = reserved + GIB * (
        c["memory.context"] + trainer.context_gib + c["memory.group"] * sum(1.0 * (ranks > 1) for ranks in axes)
    )
    return {"allocated": peak, "reserved": np.where(gpu, reserved, peak), "smi": np.where(gpu, smi, peak)}


def kind_of(notes: str) -> MemoryKind:
    """The kind of a row's memory, by its notes."""
    return next((kind for words, kind in IN_NOTES.items() if words in notes.lower()), "allocated")


def memory_band(at: Columns, peak: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that 1 of 10 and 9 of 10 runs stay below on their fullest rank."""
    width = np.exp(SIGMA * at.trainer.memory_spread)
    return peak / width, peak * width


def risk(usable: float, low: float, peak: float, high: float) -> Risk:
    """The risk of a band that is to fit into `usable` bytes (or GiB, as the band)."""
    if usable >= high:
        return "fits"
    if usable >= peak:
        return "likely"
    return "unlikely" if usable >= low else "no"
