"""Collectives over an axis of the mesh; over an axis of size 1 each is the identity.

Those of `control` carry the host's numbers and words. In a large world they pass a tree of two levels
(`spec/groups.py`): what rank 0 gives goes to the first rank of every row, and on to the rest of it; what all
give is gathered in rows, then among the first ranks, and handed back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.mesh import Mesh
from scalewright.spec.groups import HEADS


def all_sum(tensor: Tensor, mesh: Mesh, axis: str) -> Tensor:
    """Sums `tensor` over the ranks of an axis, in place; returns it."""
    if (group := mesh.group(axis, tensor.device)) is not None:
        with mesh.timers.comm(axis):
            dist.all_reduce(tensor, group=group)
    return tensor


def barrier(mesh: Mesh) -> None:
    """Waits until every rank is here."""
    control = _control(mesh)
    for group in (control.row, control.heads, control.row) if control.tree else (control.row,):
        if group is not None:
            dist.barrier(group=group)


def from_rank_zero(value: Any, mesh: Mesh) -> Any:
    """Rank 0's value (JSON types) on every rank. JSON and not pickle: received data can't run code."""
    control = _control(mesh)
    value = _pass_on(value, control.heads, 0, mesh.rank)
    return _pass_on(value, control.row, control.first, mesh.rank)


def copy_from_rank_zero(tensor: Tensor, mesh: Mesh) -> Tensor:
    """Copies a CPU tensor from rank 0, in place; returns it."""
    control = _control(mesh)
    for group, source in ((control.heads, 0), (control.row, control.first)):
        if group is not None:
            dist.broadcast(tensor, src=source, group=group)
    return tensor


def gather_json(value: Any, mesh: Mesh) -> list[Any]:
    """Every rank's value (JSON types), in rank order, on every rank."""
    control = _control(mesh)
    values = _gather(value, control.row)
    if not control.tree:
        return values
    if control.heads is not None:
        values = [item for row in _gather(values, control.heads) for item in row]
    together: list[Any] = _pass_on(values, control.row, control.first, mesh.rank)
    return together


@dataclass(frozen=True)
class _Control:
    """The groups of `control` that a rank is in; None: it is alone there, or no first rank."""

    row: dist.ProcessGroup | None
    heads: dist.ProcessGroup | None  # the first ranks of all rows
    first: int  # of this rank's row
    tree: bool  # whether there are rows at all, and not one group of all ranks


def _control(mesh: Mesh) -> _Control:
    if (row := mesh.group("control")) is None:  # this rank is alone, or alone in the last row
        return _Control(None, mesh.groups.get(HEADS), mesh.rank, mesh.world > 1)
    return _Control(row, mesh.groups.get(HEADS), mesh.rank - row.rank(), row.size() < mesh.world)


def _pass_on(value: Any, group: dist.ProcessGroup | None, source: int, rank: int) -> Any:
    """The value of a group's rank `source` (a rank of the world) on every rank of the group."""
    if group is None:
        return value
    data = json.dumps(value).encode() if rank == source else b""
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=source, group=group)
    buffer = torch.zeros(int(size.item()), dtype=torch.uint8)
    if rank == source:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(buffer, src=source, group=group)
    return json.loads(buffer.numpy().tobytes())


def _gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    if group is None:
        return [value]
    data = json.dumps(value).encode()
    size = torch.tensor([len(data)])
    sizes = [torch.zeros_like(size) for _ in range(group.size())]
    dist.all_gather(sizes, size, group=group)
    longest = max(int(s.item()) for s in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.zeros_like(padded) for _ in range(group.size())]
    dist.all_gather(parts, padded, group=group)
    return [json.loads(part[: int(length.item())].numpy().tobytes()) for part, length in zip(parts, sizes, strict=True)]
