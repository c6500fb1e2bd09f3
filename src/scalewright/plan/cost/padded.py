"""Elements of this package's own tensors as FSDP holds them: padded in rows, summed by region of the model.

    padded = sum over tensors of ceil(rows / ranks) · ranks · columns          (spec/memory.py: `padded_rows`)

From the spec's placements: one sum a model, tp, number of ranks, optimizer and PowerSGD's rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from scalewright.plan.cost.table import Table
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA, REGIONS
from scalewright.spec.compress import factors, rank_of
from scalewright.spec.layout import Layout
from scalewright.spec.memory import padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.optimizers import Optimizer, is_matrix
from scalewright.spec.placement import local_shape, place, place_plain
from scalewright.spec.tensors import TensorSpec, block_tensors, tensors

TIED = REGIONS  # a region more: the embedding, where the last stage is on another rank and uses it, too
Known = dict[tuple[str, int], np.ndarray]  # by the tensors' listing, and unit and ranks in one number
# A tensor's shape on a rank, itself, the sums it waits for, and how many blocks have one like it
Held = tuple[tuple[int, ...], TensorSpec, tuple[str, ...], int]
Listed = Callable[..., tuple[Held, ...]]  # a rank's tensors, by the model and the two sizes that cut them


class Sums(NamedTuple):
    """Sums over tensors [..., rows]: of blocks an average one's."""

    elements: np.ndarray
    sum_tp: np.ndarray  # elements whose gradients tp ranks (of experts, etp ranks) have yet to sum
    sum_kv: np.ndarray  # and kv ranks
    rest: np.ndarray  # of tensors that are no matrix of a block (spec/optimizers.py)
    states: np.ndarray  # bytes of a rank's optimizer states
    shrunk: np.ndarray  # numbers of gradients that PowerSGD compresses
    sent_p: np.ndarray  # of their P
    sent_q: np.ndarray  # of their Q


@dataclass(frozen=True)
class Padded:
    """This package's own tensors on the ranks of every row, whichever pipeline rank's."""

    sharded: np.ndarray  # rows whose parameters are FSDP's (spec/memory.py: `is_sharded`)
    ranks: np.ndarray  # that share a dense tensor
    expert_ranks: np.ndarray  # that share an expert
    regions: Sums  # dense tensors by region [REGIONS + 1, rows]
    experts: Sums  # of an average block


def padded(table: Table, known: Known) -> Padded:
    """What the sums over this package's own tensors are, of every row; `known`: those of the table's units so far."""
    replica = table.dp * table.cp / table.dp_replicate
    sharded = (table.zero_stage >= 1) & ((replica > 1) | table.offloads("parameters"))
    ranks = np.where(sharded, replica, 1.0)
    efsdp = np.maximum(np.floor(ranks * table.tp / (table.ep * table.etp)), 1.0)  # spec/grid.py
    shared = np.where(sharded, efsdp, 1.0)
    regions = _by_unit(table, ranks, _local_shapes, ("tp", "sp"), slice(None), known)
    return Padded(sharded, ranks, shared, regions, _by_unit(table, shared, _local_experts, ("ep", "etp"), BLOCK, known))


def _by_unit(
    table: Table, ranks: np.ndarray, listed: Listed, sizes: tuple[str, str], regions: slice | int, known: Known
) -> Sums:
    """Sums of every row's unit and number of ranks in these regions, made once for all that agree in what they read."""
    name = listed.__name__
    if (name, -1) not in known:
        alike: dict[tuple[object, ...], int] = {}
        keys = ((id(u.model), id(u.optimizer), u.compress, *(getattr(u.sizes, x) for x in sizes)) for u in table.units)
        known[name, -1] = np.array([alike.setdefault(key, len(alike)) for key in keys])
    numbers = known[name, -1][table.unit] * 2**31 + ranks.astype(np.int64)
    pairs, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    values = []
    for pair, row in zip(pairs.tolist(), first.tolist(), strict=True):
        if (name, pair) not in known:
            u = table.units[table.unit[row]]
            cut = tuple(getattr(u.sizes, x) for x in sizes)
            known[name, pair] = _sums(u.model, listed, cut, pair % 2**31, u.optimizer, rank_of(u.compress))
        values.append(known[name, pair])
    by_pair = np.ascontiguousarray(np.reshape(values, (-1, REGIONS + 1, len(Sums._fields)))[:, regions].T)
    return Sums(*np.take(by_pair, inverse.reshape(-1), axis=-1))


@lru_cache(maxsize=65536)
def _sums(
    model: ModelSpec, listed: Listed, cut: tuple[int, int], ranks: int, optimizer: Optimizer, rank: int
) -> np.ndarray:
    sums, layers = np.zeros((REGIONS + 1, len(Sums._fields))), model.num_hidden_layers
    for shape, tensor, waits, many in listed(model, *cut):
        size, layer = padded_rows(shape, ranks), tensor.layer
        inside = 0 <= layer < layers
        region = BLOCK if inside else EXTRA if tensor.name.startswith("mtp.") else BEFORE if layer < 0 else AFTER
        p, q = factors(shape, rank, stacked=tensor.role.startswith("expert"), partial=bool(waits))
        summed = size * bool({"tp", "etp"} & {*waits}), size * ("kv" in waits)
        kept = optimizer.state_bytes(tensor, size // ranks)
        numbers = many * np.array([size, *summed, size * (not is_matrix(tensor)), kept, size * (p > 0), p, q])
        sums[region] += numbers
        if tensor.tied_to:
            sums[TIED] += numbers
    sums[BLOCK] /= layers
    return sums


@lru_cache(maxsize=1024)
def _local_experts(model: ModelSpec, ep: int, etp: int) -> tuple[Held, ...]:
    """The tensors of a rank's experts, of a block of each kind."""
    if model.moe is None:
        return ()
    layout = Layout(devices=ep * etp, ep=ep, etp=etp, zero_stage=0)
    coords, sizes = {"ep": 0, "etp": 0}, {"ep": ep, "etp": etp}
    return tuple(
        (local_shape(held, coords, sizes), held.tensor, held.grad_sum, many)
        for layer, many in layer_kinds(model)
        for held in place_plain(block_tensors(model, layer), layout)
        if held.tensor.role.startswith("expert")
    )


@lru_cache(maxsize=1024)
def _local_shapes(model: ModelSpec, tp: int, sp: bool) -> tuple[Held, ...]:
    """The dense tensors of a tensor-parallel rank; of alike blocks those of the first."""
    layout = Layout(devices=tp, tp=tp, sp=sp, zero_stage=0)
    coords, sizes = {"tp": 0}, {"tp": tp}
    kinds, layers = dict(layer_kinds(model)), range(model.num_hidden_layers)
    dense = (tensor for tensor in tensors(model, mtp=True) if not tensor.role.startswith("expert"))
    first = [tensor for tensor in dense if tensor.layer not in layers or tensor.layer in kinds]
    return tuple(
        (local_shape(held, coords, sizes), held.tensor, held.grad_sum, kinds.get(held.tensor.layer, 1))
        for held in place(model, layout, first)
    )
