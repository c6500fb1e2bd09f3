"""Elements of this package's own tensors as FSDP holds them: padded in rows, summed by region of the model.

    padded = sum over tensors of ceil(rows / ranks) · ranks · columns          (spec/memory.py: `padded_rows`)

From the spec's placements: one sum a model, tensor-parallel size and number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from scalewright.plan.cost import work as w
from scalewright.plan.cost.table import Table
from scalewright.plan.cost.units import Unit
from scalewright.spec.layout import Layout
from scalewright.spec.memory import padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import is_matrix
from scalewright.spec.placement import local_shape, place
from scalewright.spec.tensors import TensorSpec

TIED = w.REGIONS  # a region more: the embedding, where the last stage is on another rank and uses it, too
# What is summed: elements; tensors; elements whose gradients tp ranks, and kv ranks, have yet to sum; and of
# tensors that are no matrix of a block (spec/optimizers.py) elements and number
SUMS = 6
ALL, TENSORS, SUM_TP, SUM_KV, REST, REST_TENSORS = range(SUMS)
# Of experts: elements; tensors; elements whose gradients ranks of etp have yet to sum
EXPERT_SUMS = 3
EXPERTS, EXPERT_TENSORS, SUM_ETP = range(EXPERT_SUMS)


def padded(table: Table, ranks: np.ndarray) -> np.ndarray:
    """[rows, REGIONS + 1, SUMS]: every row's sums, `ranks` to share each tensor; of blocks an average one."""
    return _by_unit(table, ranks, lambda u, shards: _regions(u.model, u.sizes.tp, u.sizes.sp, shards))


def padded_experts(table: Table, ranks: np.ndarray) -> np.ndarray:
    """[rows, EXPERT_SUMS]: the same of an average block's experts, which `ranks` share."""
    return _by_unit(table, ranks, lambda u, shards: _experts(u.model, u.sizes.ep, u.sizes.etp, shards))


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
def _experts(model: ModelSpec, ep: int, etp: int, ranks: int) -> np.ndarray:
    sums = np.zeros(EXPERT_SUMS)
    if model.moe is None:
        return sums
    layout = Layout(devices=ep * etp, ep=ep, etp=etp, zero_stage=0)
    for held in place(model, layout):
        if held.tensor.role.startswith("expert") and held.tensor.layer < model.num_hidden_layers:
            size = padded_rows(local_shape(held, {"ep": 0, "etp": 0}, {"ep": ep, "etp": etp}), ranks)
            sums += np.array([size, 1.0, size * ("etp" in held.grad_sum)])
    return np.asarray(sums / model.num_hidden_layers)


@lru_cache(maxsize=65536)
def _regions(model: ModelSpec, tp: int, sp: bool, ranks: int) -> np.ndarray:
    elements = np.zeros((w.REGIONS + 1, SUMS))
    layers = model.num_hidden_layers
    for shape, tensor, sums in _local_shapes(model, tp, sp):
        layer, rest = tensor.layer, float(not is_matrix(tensor))
        inside = 0 <= layer < layers
        extra = tensor.name.startswith("mtp.")
        region = w.BLOCK if inside else w.EXTRA if extra else w.BEFORE if layer < 0 else w.AFTER
        size = padded_rows(shape, ranks)
        numbers = np.array([size, 1.0, size * ("tp" in sums), size * ("kv" in sums), size * rest, rest])
        elements[region] += numbers
        if tensor.tied_to:
            elements[TIED] += numbers
    elements[w.BLOCK] /= layers
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
