"""Communication with a gradient: what happens in the forward, and its mirror in the backward.

    name            forward                      backward
    copy_to         nothing                      all-reduce         into column-parallel layers
    sum_over        all-reduce                   nothing            out of row-parallel layers
    sum_both        all-reduce                   all-reduce         a statistic that every rank needs
    gather_sum      all-gather along a dim       reduce-scatter     into them, with sequence parallelism
    sum_scatter     reduce-scatter along a dim   all-gather         out of them, with sequence parallelism
    gather_slice    all-gather along a dim       this rank's slice  where all ranks then do the same work

(Shoeybi et al. 2019, arXiv 1909.08053 §3: f, g; Korthikanti et al. 2022, arXiv 2205.05198 §4.2: g, g-bar.)
Nothing here computes: matrix products stay `F.linear`, so that a backward can be split into an input part and
a weight part. A gradient that arrives is complete where tensors are equal on all ranks, and partial, still to
be summed, where each rank did a part of the work; the table turns one kind into the other.

The collectives are PyTorch's functional ones: they trace under `torch.compile`, have shapes without a network
(fake tensors), and a dispatch mode sees the group's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.timers import Span

Clock = Callable[[], Span]  # `with clock(): ...` around a collective (parallel/timers.py)


@dataclass(frozen=True)
class Team:
    """The ranks along one axis as a collective needs them: the group's name, how many, and which I am."""

    name: str
    size: int
    index: int
    clock: Clock | None = field(default=None, compare=False, repr=False)


def make_team(mesh: Mesh, axis: str) -> Team:
    """The team of an axis that has two ranks or more."""
    group = mesh.group(axis)
    if group is None:
        raise ValueError(f"axis '{axis}' has one rank: there is nobody to talk to")
    return Team(group.group_name, mesh.size(axis), mesh.index(axis), partial(mesh.timers.comm, axis))


def copy_to(x: Tensor, team: Team) -> Tensor:
    """x as it is; gradients are summed over the team."""
    out: Tensor = _CopyTo.apply(x, team.name, _clock(team))  # type: ignore[no-untyped-call]
    return out


def sum_over(x: Tensor, team: Team) -> Tensor:
    """The sum over the team, on every rank; the gradient goes to each as it is."""
    out: Tensor = _SumOver.apply(x, team.name, _clock(team))  # type: ignore[no-untyped-call]
    return out


def sum_both(x: Tensor, team: Team) -> Tensor:
    """The sum over the team, on every rank; gradients, each rank's own part, are summed too."""
    out: Tensor = _SumBoth.apply(x, team.name, _clock(team))  # type: ignore[no-untyped-call]
    return out


def gather_sum(x: Tensor, dim: int, team: Team) -> Tensor:
    """All ranks' x, joined along `dim`; gradients are summed, and each rank keeps its own part's."""
    arguments = (x, dim % x.dim(), team.name, team.size, _clock(team))
    out: Tensor = _GatherSum.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def sum_scatter(x: Tensor, dim: int, team: Team) -> Tensor:
    """This rank's part, along `dim`, of the sum over the team; its length must divide by the team's size."""
    arguments = (x, dim % x.dim(), team.name, team.size, _clock(team))
    out: Tensor = _SumScatter.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def gather_slice(x: Tensor, dim: int, team: Team) -> Tensor:
    """All ranks' x, joined along `dim`; of the gradient, which is the same on all, each keeps its part."""
    arguments = (x, dim % x.dim(), team.name, team.size, team.index, _clock(team))
    out: Tensor = _GatherSlice.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def own_part(x: Tensor, dim: int, team: Team) -> Tensor:
    """This rank's part of x along `dim`; no communication."""
    length = x.shape[dim] // team.size
    return x.narrow(dim, team.index * length, length)


def _clock(team: Team) -> Clock | None:
    """The team's clock; none in a graph that is being compiled, which it would break."""
    return None if torch.compiler.is_compiling() else team.clock


# -- the collectives, without gradients ------------------------------------------------------------


def reduced(x: Tensor, team: str, clock: Clock | None = None) -> Tensor:
    """The sum of x over the team's ranks."""
    if clock is not None and not torch.compiler.is_compiling():
        with clock():
            return reduced(x, team)
    started = torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", team)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out


def gathered(x: Tensor, dim: int, team: str, size: int, clock: Clock | None = None) -> Tensor:
    """All ranks' x, joined along `dim`.

    Not by `all_gather_into_tensor`, which to Gloo is ALLGATHER_COALESCED. The two threads of a Gloo group
    note the name of what they did last in one string, without a lock, and one that is too long to lie within
    the string itself is then written into freed memory (torch 2.11 to 2.13). A compiler needs it, and to
    tensors without memory torch describes the other call as if it made a second output.
    """
    if clock is not None and not torch.compiler.is_compiling():
        with clock():
            return gathered(x, dim, team, size)
    x = x.contiguous()
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        started = torch.ops._c10d_functional.all_gather_into_tensor(x, size, team)
    else:
        whole = x.new_empty(size * x.shape[0], *x.shape[1:])
        started = torch.ops._c10d_functional.all_gather_into_tensor_out(x, size, team, out=whole)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)  # [size * x.shape[0], ...]
    if dim == 0:
        return out
    return out.view(size, *x.shape).movedim(0, dim).flatten(dim, dim + 1)


def scattered(x: Tensor, dim: int, team: str, size: int, clock: Clock | None = None) -> Tensor:
    """This rank's part along `dim` of the sum of x over the team's ranks."""
    if clock is not None and not torch.compiler.is_compiling():
        with clock():
            return scattered(x, dim, team, size)
    cut = x.reshape(*x.shape[:dim], size, -1, *x.shape[dim + 1 :])
    parts = cut.movedim(dim, 0).flatten(0, 1).contiguous()
    started = torch.ops._c10d_functional.reduce_scatter_tensor(parts, "sum", size, team)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str, clock: Clock | None) -> Tensor:
        context.team, context.clock = team, clock
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return reduced(slopes[0], context.team, context.clock), None, None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str, clock: Clock | None) -> Tensor:
        return reduced(x, team, clock)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return slopes[0], None, None


class _SumBoth(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str, clock: Clock | None) -> Tensor:
        context.team, context.clock = team, clock
        return reduced(x, team, clock)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return reduced(slopes[0], context.team, context.clock), None, None


class _GatherSum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dim: int, team: str, size: int, clock: Clock | None) -> Tensor:
        context.where = (dim, team, size, clock)
        return gathered(x, dim, team, size, clock)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None, None]:
        return scattered(slopes[0], *context.where), None, None, None, None


class _SumScatter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dim: int, team: str, size: int, clock: Clock | None) -> Tensor:
        context.where = (dim, team, size, clock)
        return scattered(x, dim, team, size, clock)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None, None]:
        return gathered(slopes[0], *context.where), None, None, None, None


class _GatherSlice(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, dim: int, team: str, size: int, index: int, clock: Clock | None
    ) -> Tensor:
        context.dim, context.start, context.length = dim, index * x.shape[dim], x.shape[dim]
        return gathered(x, dim, team, size, clock)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        return slopes[0].narrow(context.dim, context.start, context.length), None, None, None, None, None
