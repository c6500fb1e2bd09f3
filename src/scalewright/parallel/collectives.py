"""Collectives over an axis of the mesh; over an axis of size 1 each is the identity."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.mesh import Mesh


def all_sum(tensor: Tensor, mesh: Mesh, axis: str) -> Tensor:
    """Sums `tensor` over the ranks of an axis, in place; returns it."""
    group = mesh.group(axis)
    if group is not None:
        with mesh.timers.comm(axis):
            dist.all_reduce(tensor, group=group)
    return tensor


def barrier(mesh: Mesh) -> None:
    """Waits until every rank is here."""
    group = mesh.group("control")
    if group is not None:
        dist.barrier(group=group)


def from_rank_zero(value: Any, mesh: Mesh) -> Any:
    """Rank 0's value (JSON types) on every rank. JSON and not pickle: received data can't run code."""
    group = mesh.group("control")
    if group is None:
        return value
    data = json.dumps(value).encode() if mesh.rank == 0 else b""
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=0, group=group)
    buffer = torch.zeros(int(size.item()), dtype=torch.uint8)
    if mesh.rank == 0:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(buffer, src=0, group=group)
    return json.loads(bytes(buffer.tolist()).decode())


def copy_from_rank_zero(tensor: Tensor, mesh: Mesh) -> Tensor:
    """Copies a CPU tensor from rank 0, in place; returns it."""
    group = mesh.group("control")
    if group is not None:
        dist.broadcast(tensor, src=0, group=group)
    return tensor


def gather_json(value: Any, mesh: Mesh) -> list[Any]:
    """Every rank's value (JSON types), in rank order, on every rank."""
    group = mesh.group("control")
    if group is None:
        return [value]
    data = json.dumps(value).encode()
    size = torch.tensor([len(data)])
    sizes = [torch.zeros_like(size) for _ in range(mesh.world)]
    dist.all_gather(sizes, size, group=group)
    longest = max(int(s.item()) for s in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.zeros_like(padded) for _ in range(mesh.world)]
    dist.all_gather(parts, padded, group=group)
    return [
        json.loads(bytes(part[: int(length.item())].tolist()).decode())
        for part, length in zip(parts, sizes, strict=True)
    ]
