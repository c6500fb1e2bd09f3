"""Elements of this package's own tensors as FSDP holds them: padded in rows, summed by region of the model.

    padded = sum over tensors of ceil(rows / ranks) · ranks · columns          (spec/memory.py: `padded_rows`)

From the spec's placements: one sum a model, tp, number of ranks, optimizer and PowerSGD's rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from scalewright.plan.cost.columns import PipelineRank
from scalewright.plan.cost.table import Table
from scalewright.plan.cost.units import Unit
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA, REGIONS
from scalewright.spec.compress import factors, rank_of
from scalewright.spec.layout import Layout
from scalewright.spec.memory import padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import Optimizer, is_matrix
from scalewright.spec.placement import local_shape, place
from scalewright.spec.tensors import TensorSpec

TIED = REGIONS  # a region more: the embedding, where the last stage is on another rank and uses it, too
# What is summed: elements; those whose gradients tp ranks, and kv ranks, have yet to sum; those of tensors
# that are no matrix of a block (spec/optimizers.py); bytes of a rank's optimizer states; of gradients that
# PowerSGD compresses the numbers, those of their P, and those of their Q
SUMS = 8
ALL, SUM_TP, SUM_KV, REST, STATES, SHRUNK, SENT_P, SENT_Q = range(SUMS)
# The same of experts; in place of tp's sum and kv's etp's
EXPERT_SUMS = 6
EXPERTS, SUM_ETP, EXPERT_STATES, EXPERT_SHRUNK, EXPERT_P, EXPERT_Q = range(EXPERT_SUMS)


def padded(table: Table, ranks: np.ndarray) -> np.ndarray:
    """[rows, REGIONS + 1, SUMS]: every row's sums, `ranks` to share each tensor; of blocks an average one."""

    def sums(u: Unit, shards: int) -> np.ndarray:
        return _regions(u.model, u.sizes.tp, u.sizes.sp, shards, u.optimizer, rank_of(u.compress))

    return _by_unit(table, ranks, sums)


def padded_experts(table: Table, ranks: np.ndarray) -> np.ndarray:
    """[rows, EXPERT_SUMS]: the same of an average block's experts, which `ranks` share."""

    def sums(u: Unit, shards: int) -> np.ndarray:
        return _experts(u.model, u.sizes.ep, u.sizes.etp, shards, u.optimizer, rank_of(u.compress))

    return _by_unit(table, ranks, sums)


def _by_unit(table: Table, ranks: np.ndarray, sums: Callable[[Unit, int], np.ndarray]) -> np.ndarray:
    """[rows, ...]: `sums` of every row's unit and number of ranks, called once for each pair."""
    pairs, inverse = np.unique(table.unit * 2.0**31 + ranks, return_inverse=True)
    split = zip(*np.divmod(pairs.astype(np.int64), 2**31), strict=True)
    every = [sums(table.units[int(index)], int(shards)) for index, shards in split]
    return np.array(every)[inverse.reshape(-1)]


def expert_ranks(table: Table, ranks: np.ndarray) -> np.ndarray:
    """The ranks that share an expert, where `ranks` share a dense tensor (spec/grid.py: `efsdp`)."""
    return np.asarray(np.maximum(np.floor(ranks * table.tp / (table.ep * table.etp)), 1.0))


@lru_cache(maxsize=65536)
def _experts(model: ModelSpec, ep: int, etp: int, ranks: int, optimizer: Optimizer, rank: int) -> np.ndarray:
    sums = np.zeros(EXPERT_SUMS)
    if model.moe is None:
        return sums
    layout = Layout(devices=ep * etp, ep=ep, etp=etp, zero_stage=0)
    for held in place(model, layout):
        if held.tensor.role.startswith("expert") and held.tensor.layer < model.num_hidden_layers:
            shape = local_shape(held, {"ep": 0, "etp": 0}, {"ep": ep, "etp": etp})
            size = padded_rows(shape, ranks)
            kept = optimizer.state_bytes(held.tensor, size // ranks)
            p, q = factors(shape, rank, stacked=True, partial=bool(held.grad_sum))
            sums += np.array([size, size * ("etp" in held.grad_sum), kept, size * (p > 0), p, q])
    return np.asarray(sums / model.num_hidden_layers)


@lru_cache(maxsize=65536)
def _regions(model: ModelSpec, tp: int, sp: bool, ranks: int, optimizer: Optimizer, rank: int) -> np.ndarray:
    elements = np.zeros((REGIONS + 1, SUMS))
    layers = model.num_hidden_layers
    for shape, tensor, sums in _local_shapes(model, tp, sp):
        layer, rest = tensor.layer, float(not is_matrix(tensor))
        inside = 0 <= layer < layers
        extra = tensor.name.startswith("mtp.")
        region = BLOCK if inside else EXTRA if extra else BEFORE if layer < 0 else AFTER
        size = padded_rows(shape, ranks)
        kept = optimizer.state_bytes(tensor, size // ranks)
        p, q = factors(shape, rank, stacked=False, partial=bool(sums))
        numbers = np.array(
            [size, size * ("tp" in sums), size * ("kv" in sums), size * rest, kept, size * (p > 0), p, q]
        )
        elements[region] += numbers
        if tensor.tied_to:
            elements[TIED] += numbers
    elements[BLOCK] /= layers
    return elements


@lru_cache(maxsize=1024)
def _local_shapes(
    model: ModelSpec, tp: int, sp: bool
) -> tuple[tuple[tuple[int, ...], TensorSpec, tuple[str, ...]], ...]:
    """Of every dense tensor: its shape on a tensor-parallel rank, itself, and the sums that it waits for."""
    layout = Layout(devices=tp, tp=tp, sp=sp, zero_stage=0)
    coords, sizes = {"tp": 0}, {"tp": tp}
    return tuple(
        (local_shape(held, coords, sizes), held.tensor, held.grad_sum)
        for held in place(model, layout)
        if not held.tensor.role.startswith("expert")
    )


def shrunk(
    table: Table,
    tied: np.ndarray,
    place: PipelineRank,
    regions: np.ndarray,
    what: int,
    counted: np.ndarray | float = 0,
) -> np.ndarray:
    """One sum (SHRUNK, SENT_P, SENT_Q) of a pipeline rank's dense gradients that PowerSGD compresses.

    `counted`: blocks of prediction modules that are among the blocks of `place` already.

    Both ends of a tied head on two ranks (`tied`: whether it is) have yet to be summed, and are sent whole.
    """
    first, last = place.first > 0, place.last > 0
    whole = tied & (table.pp > 1) & ~table.schedules("folded") & first
    blocks = place.blocks * regions[:, BLOCK, what]
    modules = regions[:, EXTRA, what] - counted * regions[:, BLOCK, what]
    ends = first * regions[:, BEFORE, what] + last * (regions[:, AFTER, what] + modules)
    return np.asarray(blocks + ends - whole * regions[:, TIED, what])
