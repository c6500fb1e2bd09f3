"""The mesh: this rank's coordinates and the process group along every axis; a value, made once, passed on.

    Grid (spec, pure) --make_mesh--> Mesh: rank 5 of [pp 2 | dp_replicate 1 | dp_shard 2 | cp 1 | tp 2]
                                           group("tp") = {4, 5}, group("fsdp") = {5, 7}, group("pp") = {1, 5}

Groups are made in one order on every rank, and axes that join the same ranks share one group, but for those
in APART. An axis of size 1 has no group: a collective over it is the identity (`parallel/collectives.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlparse

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from scalewright.spec.grid import AXES, Grid

TIMEOUT = timedelta(minutes=30)

# Axes whose group is never another's: control is Gloo's everywhere; NCCL sends and receives in the order
# in which they were started, so that each direction of a pipeline needs a communicator of its own.
APART = frozenset({"control", "pp_down", "pp_up"})
# More communicators over the ranks of a longer pipeline, for GPUs alone (parallel/messages.py says why).
LANES = tuple(f"pp_{way}_{lane}" for way in ("down", "up") for lane in (1, 2))


@dataclass(frozen=True)
class Mesh:
    """Who this rank is, and whom it works with."""

    rank: int
    grid: Grid
    device: torch.device
    groups: Mapping[str, dist.ProcessGroup | None] = field(repr=False)

    @property
    def coords(self) -> dict[str, int]:
        """This rank's index along every axis."""
        return self.grid.coords(self.rank)

    @property
    def world(self) -> int:
        """All ranks."""
        return self.grid.world

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.grid.size_of[axis]

    def index(self, axis: str) -> int:
        """This rank's place along an axis."""
        return self.coords[axis]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The process group along an axis; None when this rank is alone there."""
        return self.groups.get(axis)

    def axis_of(self, group_name: str) -> str | None:
        """A process group's axis, by torch's name for it; unambiguous when made with `share=False`."""
        for axis, group in self.groups.items():
            if group is not None and group.group_name == group_name:
                return axis
        return None

    def device_mesh(self, axis: str) -> DeviceMesh:
        """A one-dimensional torch DeviceMesh over an existing group, for `fully_shard`."""
        group = self.group(axis)
        if group is None:
            raise ValueError(f"axis '{axis}' has one rank: nothing to build a device mesh from")
        return DeviceMesh.from_group(group, self.device.type, mesh_dim_names=(axis,))

    def hsdp_mesh(self) -> DeviceMesh:
        """What `fully_shard` works over: (fsdp), or (dp_replicate, fsdp) where shards are replicated."""
        shards, replicas = self.group("fsdp"), self.group("dp_replicate")
        if shards is None or replicas is None:
            return self.device_mesh("fsdp")
        both = next(ranks for ranks in self.grid.groups("hsdp") if self.rank in ranks)
        return DeviceMesh.from_group(
            [replicas, shards],
            self.device.type,
            mesh=torch.tensor(both, dtype=torch.int).view(self.size("dp_replicate"), -1),
            mesh_dim_names=("dp_replicate", "fsdp"),
        )


def make_mesh(
    grid: Grid, rank: int, device: torch.device, *, share: bool = True, only_own: bool = False
) -> Mesh:
    """Builds every group of the grid; all ranks must call it together, after `join_world`.

    `share=False` gives every axis a group of its own, so that a watcher can tell the axes apart. `only_own`
    makes this rank's groups alone: for a process that only plays a rank (the dry run).
    """
    groups: dict[str, dist.ProcessGroup | None] = {}
    if grid.world == 1:
        return Mesh(rank, grid, device, groups)
    made: dict[tuple[Any, ...], dist.ProcessGroup | None] = {}
    if share:
        made[tuple(range(grid.world))] = dist.group.WORLD
    lanes = LANES if device.type == "cuda" and grid.size_of["pp"] > 2 else ()
    for axis in [*AXES, "kv", "tie", *lanes]:
        for ranks in grid.groups("pp" if axis in LANES else axis):
            if len(ranks) == 1 or (only_own and rank not in ranks):
                continue
            key = ranks if share and axis not in APART and axis not in LANES else (axis, *ranks)
            if key not in made:
                backend = "gloo" if axis == "control" and not only_own else None
                made[key] = dist.new_group(list(ranks), backend=backend)
            if rank in ranks:
                groups[axis] = made[key]
    return Mesh(rank, grid, device, groups)


def join_world(
    rank: int,
    world: int,
    rendezvous: str,
    device: torch.device,
    *,
    attempt: int = 0,
    shared_store: bool = False,
) -> None:
    """Joins the others at `rendezvous` (file:///... or tcp://host:port).

    A restarted job (attempt > 0) looks its peers up where the old attempt's addresses can't be.
    """
    dist.init_process_group(
        backend_for(device),
        store=_meeting_point(rank, world, rendezvous, attempt, shared_store),
        rank=rank,
        world_size=world,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )


def backend_for(device: torch.device) -> str:
    """NCCL for a GPU's tensors, Gloo for the CPU's."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _meeting_point(rank: int, world: int, rendezvous: str, attempt: int, shared_store: bool) -> Any:
    """An attempt's own store: a prefix in the server's, or a file of its own.

    The last rank to leave a FileStore deletes its file. In a file shared by attempts, that would take the
    address of a rank that had come back already with it, and its peer would wait for that until TIMEOUT:
    seen once in 300 meetings of two ranks.
    """
    if not rendezvous.startswith("tcp://"):
        return FileStore(f"{unquote(urlparse(rendezvous).path)}-{attempt}", world)
    host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    master = rank == 0 and not shared_store
    store = TCPStore(host, int(port), world, is_master=master, timeout=TIMEOUT)
    return PrefixStore(f"attempt-{attempt}", store)


def leave_world(*, together: bool = True) -> None:
    """Takes this rank's process groups down, if there are any.

    Not `together`: this rank failed, and others may sit in a collective that it won't come to. NCCL's goodbye
    waits for them, up to TIMEOUT; its groups are left to the end of the process, which ends the connections.
    """
    if dist.is_initialized() and (together or "nccl" not in dist.get_backend_config()):
        dist.destroy_process_group()
