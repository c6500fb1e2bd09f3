"""What a rank keeps of its micro-batches until their backward: how many are under way, and bytes of each.

How many are under way each kind of schedule says: spec/schedules/kinds.py.

What a block keeps of each (Korthikanti et al. 2022 §4 and §5):

    none   all that its backward reads      selective   its input and its matrix products' outputs
    core   less attention's inside          full        its input
    policy of XLA's trainers a share; of torchtitan outputs of attention and every second plain product
    share  the rest of all that is read; by XLA's policies, whose share is of FLOPs, of the products' outputs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.work import BLOCK, PARTS, REST, RegionKept
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.plan.request import SCHEDULES
from scalewright.spec.schedules.kinds import KINDS

SCORES = 2.0  # bytes of a score in memory; with dropout its mask and the dropped copy, too
SCORES_DROPPED = 5.0  # Korthikanti et al. 2022 eq. 1: 5 a s^2 b
_IN_MEMORY = [ATTENTION.index("unfused"), ATTENTION.index("softmax")]


def under_way(table: Table, rank: np.ndarray) -> np.ndarray:
    """Micro-batches whose activations a pipeline rank holds at once, in whole ranks' worth."""
    p, v, m = table.pp, table.virtual_stages, table.accumulation
    held = np.ones(len(table))
    for index in np.unique(table.schedule):
        held = np.where((table.schedule == index) & (p > 1), KINDS[SCHEDULES[index]].alive(p, v, m, rank), held)
    return held


def block_bytes(at: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that a block keeps of one micro-batch, and what rebuilding one of them needs for a moment."""
    table, works, trainers, u = at.table, at.facts.works, at.facts.trainers, at.table.unit
    kept = RegionKept(*works.kept[:, BLOCK, :].T)  # a number a unit
    dropout, square = trainers.dropout > 0, np.isin(trainers.attention, _IN_MEMORY)
    scores = np.where(square, kept.square * np.where(dropout, SCORES_DROPPED, SCORES), 0.0)
    masks = np.where(dropout, works.stream, 0.0)
    narrow = works.narrowed
    halves = trainers.fp8_inputs[:, None] * works.inputs + trainers.fp8_gates[:, None] * works.gates
    # Megatron Core weights experts' tokens before their last product, which then keeps its input alone
    first = np.where(trainers.kernels == KERNELS.index("modern"), kept.outputs, 0.0)
    none = (kept.none + kept.eager * trainers.eager_kept - narrow * halves.sum(1) - first)[u]
    # what recomputed parts keep in 8 bits is counted with them
    freed = works.parts - narrow[:, None] * halves[:, :REST]
    freed[:, PARTS.index("experts")] -= first
    none = none + at.trainer.gathered_kept * gathered(at)
    whole, inside = none + (scores + masks)[u], none + masks[u]
    by_xla = trainers.kernels == KERNELS.index("xla")
    full = kept.full[u] / np.where((at.trainer.partitions > 0) & (table.sp <= 0), table.tp, 1.0)
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "core": lambda: inside,
        "selective": lambda: np.where(square[u], inside, kept.selective[u]),
        "full": lambda: full,
        "share": lambda: full + (1 - table.share) * np.where(by_xla[u], kept.dots[u], whole - full),
        "budget": lambda: at.budget[0],
        "modules": lambda: whole - (trainers.reruns * np.maximum(freed, 0.0)).sum(1)[u],
        "policy": lambda: np.where(by_xla[u], at.c["memory.policy"] * (whole + full), kept.by_operator[u]),
    }
    chosen = whole
    for name, of in kinds.items():
        if (rows := table.recompute == RECOMPUTE.index(name)).any():
            chosen = np.where(rows, of(), chosen)
    rebuilt = np.where(table.recompute == RECOMPUTE.index("none"), 0.0, whole - chosen)
    return chosen, np.maximum(rebuilt, 0.0)


def gathered(at: Columns) -> np.ndarray:
    """Bytes by which the inputs of a block's tensor-parallel products grow when sequence parallelism gathers them."""
    return np.asarray(at.table.sp * at.work.exchanges * at.work.stream * (1 - 1 / at.table.tp))


@dataclass(frozen=True)
class Kept:
    """Bytes that an average block keeps of a micro-batch, and more while its backward runs."""

    block: np.ndarray
    rebuilt: np.ndarray
    last: np.ndarray  # what a stage's last block keeps


def own_kept(table: Table, place: PipelineRank, kept: np.ndarray, rebuilt: np.ndarray, alive: np.ndarray) -> Kept:
    """What this package's own blocks keep; where every k-th recomputes, the first of each stage does.

    Offloaded blocks keep nothing but two: one that leaves or comes back while another runs.
    """
    shared = table.recompute == RECOMPUTE.index("share")
    share = np.where(shared, table.share, 1.0)
    whole = rebuilt / share
    index = np.maximum(np.ceil(place.blocks / table.virtual_stages), 1.0) - 1
    again = index % np.rint(1 / share) == 0
    last = np.where(shared, kept + rebuilt - np.where(again, whole, 0.0), kept)
    two = np.minimum(2.0 / np.maximum(alive * place.blocks, 1.0), 1.0)
    scale = np.where(table.offloads("activations"), two, 1.0)
    return Kept(kept * scale, np.where(again, whole, 0.0), last * scale)
