"""The process groups of a run as data: which axes need them, how they are made, and what they cost.

    used_axes(layout, model) --plan_groups--> AxisGroups("tp", ((0, 1), (2, 3)), "nccl"), ...   in order
                                 --cost-->    groups in all, splits, the sockets of a rank

    NCCL    a split of the world's communicator is a collective of all ranks, whoever is in the new group:
            one split makes all groups of an axis (ncclCommSplit; the color is the group)
    Gloo    every member has a socket for every other one, and GLOO_FILES beside: a group of n costs
            each of its ranks n - 1 + GLOO_FILES file descriptors

Axes that join the same ranks share their groups, but for those in APART. Two axes have all their groups in common or
none: both cut the world into copies of one set of ranks, each moved on to the first rank that is left, and there is one
way to do that. `control` joins all ranks over Gloo. In a world above FLAT ranks it is a tree of two levels, with some
2 sqrt(N) sockets for a rank in place of N - 1: rows of consecutive ranks, and the first rank of each row.

    algorithm bandwidth = S / t            S: bytes, by the collective as below; t: seconds
    bus bandwidth       = S / t * factor   comparable with a link's rate, whatever the number of ranks n

collective       S                                    factor
all_reduce       the buffer of each rank              2 (n - 1) / n
all_gather       the gathered output                  (n - 1) / n
reduce_scatter   the whole input                      (n - 1) / n
all_to_all       all that a rank sends, its own part  (n - 1) / n
broadcast        the buffer                           1
send_recv        the message to the next rank         1       (nccl-tests, doc/PERFORMANCE.md)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Literal

from scalewright.spec.grid import Grid
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded
from scalewright.spec.model import ModelSpec

Backend = Literal["nccl", "gloo"]

# Axes that collectives and messages go over. Those whose groups join every rank are made first, then `tie`,
# then Gloo's: torch names a split's groups by how many groups a rank is in, on which members must agree.
USED = (
    "world", "control", "pp_down", "pp_up", "dp_replicate", "cp", "tp", "fsdp", "loss", "gradient", "kv", "ep", "etp",
    "efsdp", "ehsdp", "tie",
)  # fmt: skip
ISLANDS = ("island", "islands")  # those of runs with `diloco`, before `tie`
EXPERTS = frozenset({"ep", "etp", "efsdp", "ehsdp"})  # of them those that only experts use
# Axes over which gradients of offloaded weights are summed in host memory: beside NCCL's groups, Gloo's.
HOST_SUMS = ("tp", "kv", "etp", "tie")
HOST = "_host"  # ends the names of those

# Axes whose group is never another's: control is Gloo's everywhere; NCCL sends and receives in the order
# in which they were started, so that each direction of a pipeline needs a communicator of its own, and keys
# and values on their way round, and tokens to experts, don't wait behind FSDP's gathers over the same ranks,
# nor the reports of islands behind an outer step that is under way.
APART = frozenset({"control", "pp_down", "pp_up", "cp", "ep", "etp", "islands"})
# More communicators over the ranks of a longer pipeline, for GPUs alone (see parallel/messages.py).
LANES = tuple(f"pp_{way}_{lane}" for way in ("down", "up") for lane in (1, 2))
HEADS = "control_heads"  # the first ranks of control's rows
FLAT = 64  # ranks up to which control is one group

# Of a group beside its pairs of ranks: an epoll, a listening socket, and a pipe that wakes its thread.
GLOO_FILES = 4


@dataclass(frozen=True)
class AxisGroups:
    """The groups along one axis, those of one rank left out."""

    axis: str
    ranks: tuple[tuple[int, ...], ...]
    backend: Backend
    same_as: str | None = None  # the axis whose groups these are; `default`: torch's own group of all ranks


@dataclass(frozen=True)
class GroupCost:
    """What a world's groups take to make and to keep."""

    groups: int  # of the whole world, torch's own of all ranks counted
    splits: int  # of NCCL's communicator of the world, each of them a collective of all ranks
    most: int  # groups that a rank is in
    sockets: int  # file descriptors that Gloo keeps open, in the rank that has most of them


def used_axes(layout: Layout, model: ModelSpec | None, *, islands: bool = False) -> tuple[str, ...]:
    """The axes that training communicates over, in order; `model` None: a user's own module.

    `tie` only where both ends use the embedding, those of experts and islands only where there are any, and
    either the axes that FSDP shards over or those that whole replicas sum their gradients over.
    """
    unused = {"gradient", "ehsdp"} if is_sharded(layout) else {"dp_replicate", "fsdp", "efsdp"}
    if islands:  # whose outer steps travel over it
        unused.discard("dp_replicate")
    if model is None or not (model.tie_word_embeddings or model.mtp_layers):
        unused.add("tie")
    if model is None or model.moe is None:
        unused |= EXPERTS
    *first, tie = USED
    every = (*first, *(ISLANDS if islands else ()), tie)
    return tuple(axis for axis in every if axis not in unused)


def plan_groups(
    grid: Grid,
    axes: Sequence[str] = USED,
    *,
    gpu: bool,
    host_sums: bool = False,
    share: bool = True,
    row: int | None = None,
) -> tuple[AxisGroups, ...]:
    """The groups to be made for some axes, in order; of an axis of one rank there are none.

    `gpu`: NCCL joins the ranks, and Gloo for what is the host's; else Gloo alone. `host_sums`: gradients are
    summed in host memory too. `share=False`: a group of its own for every axis, so that a group's name is
    one axis's. `row`: ranks of a row of control's tree (None: by the world's size).
    """
    if grid.world == 1:
        return ()
    every = tuple(range(grid.world))
    plan: list[AxisGroups] = []
    first: dict[tuple[Backend, tuple[tuple[int, ...], ...]], str] = {}
    if share:
        first["nccl" if gpu else "gloo", (every,)] = "default"

    def add(axis: str, groups: Sequence[tuple[int, ...]], backend: Backend, *, apart: bool) -> None:
        if not (ranks := tuple(group for group in groups if len(group) > 1)):
            return
        same = None if apart else first.get((backend, ranks))
        if share and not apart and same is None:
            first[backend, ranks] = axis
        plan.append(AxisGroups(axis, ranks, backend, same))

    backend: Backend = "nccl" if gpu else "gloo"
    covering = [axis for axis in axes if axis not in ("control", "tie")]
    lanes = LANES if gpu and grid.size_of["pp"] > 2 else ()
    for axis in [*covering, *lanes, *(axis for axis in axes if axis == "tie")]:
        ranks_of = grid.groups("pp" if axis in LANES else axis)
        add(axis, ranks_of, backend, apart=axis in APART or axis in LANES)
    if "control" in axes:
        for axis, groups in _control(every, row or control_row(grid.world)).items():
            add(axis, groups, "gloo", apart=True)
    if gpu and host_sums:
        for axis in HOST_SUMS:
            if axis in axes:
                add(f"{axis}{HOST}", grid.groups(axis), "gloo", apart=False)
    return tuple(plan)


def control_row(world: int) -> int:
    """Ranks of a row of control's tree: all of a small world, else the power of two next below the root."""
    return world if world <= FLAT else 1 << (isqrt(world).bit_length() - 1)


def _control(every: Sequence[int], row: int) -> dict[str, list[tuple[int, ...]]]:
    """The groups of control: one, or its rows and their heads."""
    rows = [tuple(every[start : start + row]) for start in range(0, len(every), row)]
    return {"control": rows, HEADS: [tuple(ranks[0] for ranks in rows)]}


def cost(grid: Grid, plan: Sequence[AxisGroups], *, gpu: bool) -> GroupCost:
    """What the groups of a plan cost, torch's own group of all ranks included."""
    if grid.world == 1:
        return GroupCost(0, 0, 0, 0)
    made = [axis for axis in plan if axis.same_as is None]
    inside: Counter[int] = Counter(range(grid.world))
    sockets: Counter[int] = Counter({rank: 0 if gpu else files(grid.world) for rank in range(grid.world)})
    for groups in made:
        for ranks in groups.ranks:
            inside.update(ranks)
            if groups.backend == "gloo":
                sockets.update(dict.fromkeys(ranks, files(len(ranks))))
    number, splits = sum(len(groups.ranks) for groups in made), sum(groups.backend == "nccl" for groups in made)
    return GroupCost(1 + number, splits, max(inside.values()), max(sockets.values()))


def files(ranks: int) -> int:
    """File descriptors that a group of Gloo takes in each of its ranks."""
    return ranks - 1 + GLOO_FILES


@dataclass(frozen=True)
class Collective:
    """One collective: factor = passes * (n - 1) / n, or 1; on a ring, passes * (n - 1) messages in a row."""

    name: str
    passes: int
    shared: bool = True  # a rank keeps its own part, so that (n - 1) / n crosses its link

    def factor(self, ranks: int) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return self.passes * (ranks - 1) / ranks if self.shared else 1.0

    def hops(self, ranks: int) -> int:
        """Messages in a row on a ring of so many ranks."""
        return self.passes * (ranks - 1) if self.shared else 1


_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
COLLECTIVES = {name: Collective(name, passes) for name, passes in _PASSES.items()}
COLLECTIVES |= {name: Collective(name, 1, shared=False) for name in ("broadcast", "send_recv")}
