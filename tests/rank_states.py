"""Bytes of weights, gradients and optimizer states that one rank keeps, tensor by tensor.

The planner sums regions of the model for all rows of a table at once (plan/cost/states.py), and a run holds
what it holds: tests compare both with this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.memory import BF16, FP32, is_sharded, offloads_optimizer, offloads_parameters, padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer, is_matrix
from scalewright.spec.placement import Placement, holders, local_shape, place
from scalewright.spec.tensors import TensorSpec


@dataclass(frozen=True)
class StateBytes:
    """Bytes that one rank keeps between steps, in device memory and, with offload, on the host."""

    parameters: int
    gradients: int
    optimizer: int
    host: int = 0


def state_bytes(
    model: ModelSpec, layout: Layout, rank: int = 0, *, bf16: bool = True, optimizer: Optimizer = ADAMW
) -> StateBytes:
    """Bytes of parameters, gradients and optimizer states that a rank keeps between steps."""
    held = list(_shapes(model, layout, rank))
    states = sum(optimizer_bytes(optimizer, tensor, prod(local)) for tensor, _, local in held)
    shards = sum(_padded_shard(tensor, whole, layout) for tensor, whole, _ in held)
    masters = gradients = FP32 * shards
    copies = BF16 * shards if bf16 and not is_sharded(layout) else 0
    if offloads_parameters(layout):
        return StateBytes(0, 0, 0, masters + gradients + states)
    if offloads_optimizer(layout):  # the host has masters, and buffers for gradients
        return StateBytes(copies or masters, gradients, 0, FP32 * 2 * sum(prod(local) for _, _, local in held) + states)
    return StateBytes(masters + copies, gradients, states)


def unit_bytes(model: ModelSpec, layout: Layout, rank: int = 0) -> int:
    """Bytes of a rank's part of what FSDP reduces at once, where that is largest: a block's, or the head's."""
    units: Counter[int] = Counter()
    for tensor, whole, _ in _shapes(model, layout, rank):
        units[tensor.layer] += FP32 * _padded_shard(tensor, whole, layout)
    return max(units.values())


def optimizer_bytes(optimizer: Optimizer, tensor: TensorSpec, elements: int) -> int:
    """Bytes of all states of a tensor of which a rank holds so many numbers, from the words of the table."""
    names = states_of(optimizer, tensor)
    counter = optimizer.step_bytes if names == (optimizer.outer_states or optimizer.states) else 0
    if optimizer.name == "adamw_bf16":
        return 2 * len(names) * elements + counter
    if optimizer.name == "adamw_8bit" and prod(tensor.shape) >= 4096:
        return len(names) * (elements + 4 * ((elements + 255) // 256)) + counter
    return FP32 * len(names) * elements + counter


def _padded_shard(tensor: TensorSpec, whole: tuple[int, ...], layout: Layout) -> int:
    """Elements of a rank's shard with FSDP's padding; experts are shared by fewer ranks, or by none."""
    ranks = layout.dp_shard * layout.cp if is_sharded(layout) else 1
    if is_sharded(layout) and tensor.role.startswith("expert"):
        ranks = ranks * layout.tp // (layout.ep * layout.etp)
    return padded_rows(whole, ranks) // ranks


def states_of(optimizer: Optimizer, tensor: TensorSpec) -> tuple[str, ...]:
    """The states of one tensor."""
    by_matrix = optimizer.outer_states is not None
    return optimizer.outer_states or () if by_matrix and not is_matrix(tensor) else optimizer.states


def _shapes(
    model: ModelSpec, layout: Layout, rank: int
) -> Iterator[tuple[TensorSpec, tuple[int, ...], tuple[int, ...]]]:
    """(itself, shape before FSDP's cut, local shape) of every tensor that a rank holds."""
    grid = make_grid(layout, model.kv_heads)
    coords = grid.coords(rank)
    for placement in place(model, layout):
        if coords["pp"] in holders(placement, layout):
            whole = before_sharding(placement)
            before, here = (local_shape(p, coords, grid.size_of) for p in (whole, placement))
            yield placement.tensor, before, here


def before_sharding(placement: Placement) -> Placement:
    """A placement without FSDP's cut: the tensor that is gathered for compute."""
    return replace(placement, splits=tuple(s for s in placement.splits if s.axis not in ("fsdp", "efsdp")))
