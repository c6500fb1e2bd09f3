"""The mesh: this rank's coordinates and the process group along every axis; a value, made once, passed on.

    Grid (spec, pure) --make_mesh--> Mesh: rank 5 of [pp 2 | dp_replicate 1 | dp_shard 2 | cp 1 | tp 2]
                                           group("tp") = {4, 5}, group("fsdp") = {5, 7}, group("pp") = {1, 5}

Which groups are made, and in which order on every rank, is data (`spec/groups.py`): only axes that the run communicates
over, and axes that join the same ranks share their groups. NCCL's are made an axis at a time, by one split of the
world's communicator, Gloo's one by one. Over an axis of size 1, which has no group, a collective is the identity.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlparse

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from scalewright.model.torch_private import abort_groups, set_group_timeout
from scalewright.parallel.timers import Timers
from scalewright.spec.grid import Grid
from scalewright.spec.groups import HEADS, HOST, USED, AxisGroups, plan_groups

MEET_S = 0.02  # between looks at whether all ranks have come
TIMEOUT = timedelta(minutes=30)  # of a world whose run states none (`train.timeouts.start_s`)


@dataclass(frozen=True)
class Mesh:
    """This rank's coordinates, and the process groups that it is in."""

    rank: int
    grid: Grid
    device: torch.device
    groups: Mapping[str, dist.ProcessGroup] = field(repr=False)
    axes: tuple[str, ...] = USED  # those that have groups, where they have two ranks or more
    timers: Timers = field(default_factory=Timers, repr=False, compare=False)  # of this rank's step

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
        """This rank's index along an axis."""
        return self.coords[axis]

    @property
    def together(self) -> str:
        """The axis of the ranks that take a step together: all, or those of an island."""
        return "island" if self.grid.islands else "world"

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The replicas that sum gradients in each step; islands don't."""
        return None if self.grid.islands else self.group("dp_replicate")

    def group(self, axis: str, tensors: torch.device | None = None) -> dist.ProcessGroup | None:
        """The process group along an axis; None when this rank is alone there.

        `tensors`: the device of those that it is to carry, where that may be the host beside a GPU. Raises
        ValueError for an axis that no group was made for: its collectives would do nothing.
        """
        on_host = tensors is not None and tensors.type == "cpu" and self.device.type != "cpu"
        name = f"{axis}{HOST}" if on_host else axis
        if name not in self.groups and self.grid.size_of.get(axis, 1) > 1:
            if on_host:
                raise ValueError(f"no group for tensors in host memory was made for axis '{axis}'")
            if axis not in self.axes:
                raise ValueError(f"no group was made for axis '{axis}': name it in make_mesh(axes=...)")
        return self.groups.get(name)

    def axis_of(self, group_name: str) -> str | None:
        """A process group's axis, by torch's name for it; unambiguous when made with `share=False`."""
        return next((axis for axis, group in self.groups.items() if group.group_name == group_name), None)


def make_mesh(
    grid: Grid, rank: int, device: torch.device, *, axes: tuple[str, ...] = USED, host_sums: bool = False,
    share: bool = True, only_own: bool = False, row: int | None = None, timeout: timedelta | None = None,
) -> Mesh:  # fmt: skip
    """Builds the groups of `axes`; all ranks must call it together, after `join_world`.

    `host_sums`: gradients of offloaded weights are summed in host memory, so that the groups of HOST_SUMS need Gloo
    beside NCCL. `share=False` makes a group of its own for every axis, so that a group's name is one axis's. `only_own`
    makes this rank's groups alone: for a process that only plays a rank (the dry run). `row`: ranks of a row of
    control's tree (None: by the world's size). `timeout`: of each group, until `set_timeout` (None: torch's default).
    """
    gpu = device.type == "cuda"
    groups: dict[str, dist.ProcessGroup] = {}
    plan = plan_groups(grid, axes, gpu=gpu, host_sums=host_sums, share=share, row=row)
    splits = gpu and not only_own and _bound_to_a_device()
    for made in plan:
        if made.same_as is not None:
            group = dist.group.WORLD if made.same_as == "default" else groups.get(made.same_as)
        elif splits and made.backend == "nccl":
            every = [list(ranks) for ranks in made.ranks]
            group = dist.split_group(split_ranks=every, timeout=timeout, group_desc=made.axis)
        else:
            group = _one_by_one(made, rank, device, timeout, only_own=only_own)
        if group is not None:
            groups[made.axis] = group
    return Mesh(rank, grid, device, groups, axes)


def _bound_to_a_device() -> bool:
    """Whether the world's own communicator is there, so that it can be split: as `join_world` makes it."""
    default = dist.group.WORLD if dist.is_initialized() else None
    return default is not None and default.bound_device_id is not None


def _one_by_one(
    made: AxisGroups, rank: int, device: torch.device, timeout: timedelta | None, *, only_own: bool
) -> dist.ProcessGroup | None:
    """This rank's group of an axis. Every rank calls for all, so that all count the same names: Gloo's cost nothing."""
    backend = None if only_own or made.backend == backend_for(device) else made.backend
    mine: dist.ProcessGroup | None = None
    for ranks in made.ranks:
        if rank in ranks or not only_own:
            group = dist.new_group(list(ranks), timeout, backend, group_desc=made.axis)
            mine = group if rank in ranks else mine
    return mine


def join_world(
    rank: int, world: int, rendezvous: str, device: torch.device, *, attempt: int | None = 0,
    shared_store: bool = False, timeout: timedelta = TIMEOUT,
) -> str:  # fmt: skip
    """Joins the others at `rendezvous` (file:///... or tcp://host:port); the name of the attempt, alike on all ranks.

    `timeout` is that of meeting, and of torch's own group of all ranks until `set_timeout` changes it. A
    restarted job (attempt > 0) looks its peers up where the old attempt's addresses can't be; `attempt` None: ranks
    don't know alike how often they were started, and agree on a name.
    """
    store, name = _meeting_point(rank, world, rendezvous, attempt, shared_store, timeout)
    dist.init_process_group(
        backend_for(device), store=store, rank=rank,
        world_size=world, timeout=timeout, device_id=device if device.type == "cuda" else None,
    )  # fmt: skip
    return name


def ensure_world(mesh: Mesh) -> None:
    """A process group for a world of one rank, which has none of its own."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend_for(mesh.device), store=store, rank=0, world_size=1)


def backend_for(device: torch.device) -> str:
    """NCCL for a GPU's tensors, Gloo for the CPU's."""
    return "nccl" if device.type == "cuda" else "gloo"


def set_timeout(mesh: Mesh, seconds: float) -> None:
    """How long collectives and messages that begin from now on may take, but those of `control`.

    `control` is left at the timeout of `make_mesh`: ranks wait there while another writes a checkpoint.
    """
    groups = [group for axis, group in mesh.groups.items() if axis not in ("control", HEADS)]
    for group in {id(group): group for group in groups}.values():
        set_group_timeout(timedelta(seconds=seconds), group)


def _meeting_point(
    rank: int, world: int, rendezvous: str, attempt: int | None, shared_store: bool, timeout: timedelta = TIMEOUT
) -> tuple[Any, str]:
    """An attempt's own store, a prefix in the server's, or a file of its own; and the attempt's name. The last rank to
    leave a FileStore deletes its file: in one shared by attempts with the address of a rank that had come back
    already, for which its peer would wait until the timeout (seen once in 300 meetings of two ranks)."""
    if not rendezvous.startswith("tcp://"):
        return FileStore(f"{unquote(urlparse(rendezvous).path)}-{attempt or 0}", world), str(attempt or 0)
    host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    master = rank == 0 and not shared_store
    store = TCPStore(host, int(port), world, is_master=master, wait_for_workers=attempt is not None, timeout=timeout)
    name = _agree(PrefixStore("starts", store), rank, world, timeout) if attempt is None else str(attempt)
    return PrefixStore(f"attempt-{name}", store), name


def _agree(store: Any, rank: int, world: int, timeout: timedelta) -> str:
    """A name of this start that all its ranks have. torchrun's agents count restarts each for itself: one that came
    later, or whose ranks were only asked to leave, has another number; and their store may outlive the ranks.

        rank 0   start = name ─► waits until every rank is here ─► takes start away, for the next one ─► whole
        others   read start ─► here ─► wait for whole; start may change meanwhile: the old one was of dead ranks
    """
    end, name = time.monotonic() + timeout.total_seconds(), uuid.uuid4().hex[:12] if rank == 0 else ""
    if rank == 0:
        store.set("start", name)
    while time.monotonic() < end:
        if rank == 0 and store.add(f"{name}/here", 0) >= world - 1:
            store.set("start", "")  # not deleted: others may be about to read it
            store.set(f"{name}/whole", "1")
            return name
        now = store.get("start").decode() if rank and store.check(["start"]) else ""
        if now not in ("", name):
            name = now
            store.add(f"{name}/here", 1)
        if rank and name and store.check([f"{name}/whole"]):
            return name
        time.sleep(MEET_S)
    raise RuntimeError(f"timed out: after {timeout} not all of {world} ranks had come")


def leave_world(*, together: bool = True, abort: bool = False) -> None:
    """Takes this rank's process groups down, if there are any.

    Not `together`: this rank failed, and others may sit in a collective that it won't reach. Destroying
    NCCL's groups waits for them, up to the timeout; the end of the process closes their connections. `abort`: it goes
    on, so that they are given up.
    """
    if abort and not together and dist.is_initialized() and "nccl" in dist.get_backend_config():
        abort_groups()
    elif dist.is_initialized() and (together or "nccl" not in dist.get_backend_config()):
        dist.destroy_process_group()
