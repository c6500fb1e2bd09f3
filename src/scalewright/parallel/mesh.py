"""The mesh: this rank's coordinates and the process group along every axis; a value, made once, passed on.

    Grid (spec, pure) --make_mesh--> Mesh: rank 5 of [pp 2 | dp_replicate 1 | dp_shard 2 | cp 1 | tp 2]
                                           group("tp") = {4, 5}, group("fsdp") = {5, 7}, group("pp") = {1, 5}

Groups are made in one order on every rank, and axes that join the same ranks share one group, but for those
in APART. An axis of size 1 has no group: a collective over it is the identity (`parallel/collectives.py`).
Only axes that something communicates over get groups (USED): a group costs every rank a connection to every
other member, and with NCCL a split of the whole world.
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
from torch.distributed.distributed_c10d import _set_pg_timeout

from scalewright.parallel.timers import Timers
from scalewright.spec.grid import Grid
from scalewright.spec.model import ModelSpec

TIMEOUT = timedelta(minutes=30)  # of a world whose run states none (`train.timeouts.start_s`)

# Axes that collectives and messages go over, in the order in which their groups are made.
USED = (
    "world", "control", "pp_down", "pp_up", "dp_replicate", "cp", "tp", "fsdp", "loss", "gradient", "kv",
    "tie", "ep", "etp", "efsdp", "ehsdp",
)  # fmt: skip
EXPERTS = frozenset({"ep", "etp", "efsdp", "ehsdp"})  # of them those that only experts use
ISLANDS = ("island", "islands")  # those of runs with `diloco`
# Axes that may carry tensors of the host beside those of a GPU: gradients of offloaded weights.
HOST_SUMS = frozenset({"tp", "kv", "tie"})

# Axes whose group is never another's: control is Gloo's everywhere; NCCL sends and receives in the order
# in which they were started, so that each direction of a pipeline needs a communicator of its own, and keys
# and values on their way round, and tokens to experts, don't wait behind FSDP's gathers over the same ranks,
# nor the reports of islands behind an outer step that is under way.
APART = frozenset({"control", "pp_down", "pp_up", "cp", "ep", "etp", "islands"})
# More communicators over the ranks of a longer pipeline, for GPUs alone (see parallel/messages.py).
LANES = tuple(f"pp_{way}_{lane}" for way in ("down", "up") for lane in (1, 2))


@dataclass(frozen=True)
class Mesh:
    """This rank's coordinates, and the process groups that it is in."""

    rank: int
    grid: Grid
    device: torch.device
    groups: Mapping[str, dist.ProcessGroup | None] = field(repr=False)
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

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The process group along an axis; None when this rank is alone there.

        Raises ValueError for an axis that no group was made for: its collectives would do nothing.
        """
        if axis not in self.groups and axis not in self.axes and self.grid.size_of.get(axis, 1) > 1:
            raise ValueError(f"no group was made for axis '{axis}': name it in make_mesh(axes=...)")
        return self.groups.get(axis)

    def axis_of(self, group_name: str) -> str | None:
        """A process group's axis, by torch's name for it; unambiguous when made with `share=False`."""
        for axis, group in self.groups.items():
            if group is not None and group.group_name == group_name:
                return axis
        return None


def axes_of(model: Any, *, islands: bool = False) -> tuple[str, ...]:
    """The axes that training this model communicates over: `tie` only where both ends use the embedding,
    those of experts and of islands only where there are any."""
    unused: set[str] = set()
    if not isinstance(model, ModelSpec) or not (model.tie_word_embeddings or model.mtp_layers):
        unused.add("tie")
    if not isinstance(model, ModelSpec) or model.moe is None:
        unused |= EXPERTS
    return (*(axis for axis in USED if axis not in unused), *(ISLANDS if islands else ()))


def make_mesh(
    grid: Grid,
    rank: int,
    device: torch.device,
    *,
    axes: tuple[str, ...] = USED,
    host_sums: bool = False,
    share: bool = True,
    only_own: bool = False,
) -> Mesh:
    """Builds the groups of `axes`; all ranks must call it together, after `join_world`.

    `host_sums`: gradients of offloaded weights are summed in host memory, so that the groups of HOST_SUMS
    need Gloo beside NCCL. `share=False` makes a group of its own for every axis, so that a group's name is
    one axis's. `only_own` makes this rank's groups alone: for a process that only plays a rank (the dry run).
    """
    groups: dict[str, dist.ProcessGroup | None] = {}
    if grid.world == 1:
        return Mesh(rank, grid, device, groups, axes)
    default = None if only_own else backend_for(device)
    by_ranks: dict[tuple[Any, ...], dist.ProcessGroup | None] = {}
    if share:
        by_ranks[(default, *range(grid.world))] = dist.group.WORLD
    lanes = LANES if device.type == "cuda" and grid.size_of["pp"] > 2 else ()
    for axis in [*axes, *lanes]:
        backend = None if only_own else backend_for(device, axis, host_sums=host_sums)
        for ranks in grid.groups("pp" if axis in LANES else axis):
            if len(ranks) == 1 or (only_own and rank not in ranks):
                continue
            key = (backend, *ranks) if share and axis not in APART and axis not in LANES else (axis, *ranks)
            if key not in by_ranks:
                # The world's own backend by its absence: only then does NCCL split the world's communicator.
                other_backend = None if backend == default else backend
                by_ranks[key] = dist.new_group(list(ranks), backend=other_backend, group_desc=axis)
            if rank in ranks:
                groups[axis] = by_ranks[key]
    return Mesh(rank, grid, device, groups, axes)


def join_world(
    rank: int,
    world: int,
    rendezvous: str,
    device: torch.device,
    *,
    attempt: int = 0,
    shared_store: bool = False,
    timeout: timedelta = TIMEOUT,
) -> None:
    """Joins the others at `rendezvous` (file:///... or tcp://host:port).

    `timeout` holds for every group made later, too, until `set_timeout` changes it. A restarted job
    (attempt > 0) looks its peers up where the old attempt's addresses can't be.
    """
    dist.init_process_group(
        backend_for(device),
        store=_meeting_point(rank, world, rendezvous, attempt, shared_store, timeout),
        rank=rank,
        world_size=world,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def backend_for(device: torch.device, axis: str = "world", *, host_sums: bool = False) -> str:
    """NCCL for a GPU's tensors, Gloo for the CPU's and for control; both only where both kinds are summed.

    Gloo connects every member of a group with every other: N - 1 sockets and a thread, for each group.
    """
    if device.type != "cuda" or axis == "control":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if host_sums and axis in HOST_SUMS else "nccl"


def set_timeout(mesh: Mesh, seconds: float) -> None:
    """How long collectives and messages that begin from now on may take, but those of `control`.

    `control` is left at the timeout of `join_world`: ranks wait there while another writes a checkpoint.
    """
    groups = [group for axis, group in mesh.groups.items() if group is not None and axis != "control"]
    for group in {id(group): group for group in groups}.values():
        _set_pg_timeout(timedelta(seconds=seconds), group)


def _meeting_point(
    rank: int, world: int, rendezvous: str, attempt: int, shared_store: bool, timeout: timedelta = TIMEOUT
) -> Any:
    """An attempt's own store: a prefix in the server's, or a file of its own.

    The last rank to leave a FileStore deletes its file. In a file shared by attempts, that would take the
    address of a rank that had come back already with it, and its peer would wait for that until the timeout:
    seen once in 300 meetings of two ranks.
    """
    if not rendezvous.startswith("tcp://"):
        return FileStore(f"{unquote(urlparse(rendezvous).path)}-{attempt}", world)
    host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    master = rank == 0 and not shared_store
    store = TCPStore(host, int(port), world, is_master=master, timeout=timeout)
    return PrefixStore(f"attempt-{attempt}", store)


def leave_world(*, together: bool = True) -> None:
    """Takes this rank's process groups down, if there are any.

    Not `together`: this rank failed, and others may sit in a collective that it won't reach. Destroying
    NCCL's groups waits for them, up to the timeout; the end of the process closes their connections.
    """
    if dist.is_initialized() and (together or "nccl" not in dist.get_backend_config()):
        dist.destroy_process_group()
