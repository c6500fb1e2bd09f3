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

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from scalewright.parallel.mesh import Mesh


@dataclass(frozen=True)
class Team:
    """The ranks along one axis as a collective needs them: the group's name, how many, and which I am."""

    name: str
    size: int
    index: int


def make_team(mesh: Mesh, axis: str) -> Team:
    """The team of an axis that has two ranks or more."""
    group = mesh.group(axis)
    if group is None:
        raise ValueError(f"axis '{axis}' has one rank: there is nobody to talk to")
    return Team(group.group_name, mesh.size(axis), mesh.index(axis))


def copy_to(x: Tensor, team: Team) -> Tensor:
    """x as it is; gradients are summed over the team."""
    out: Tensor = _CopyTo.apply(x, team.name)  # type: ignore[no-untyped-call]
    return out


def sum_over(x: Tensor, team: Team) -> Tensor:
    """The sum over the team, on every rank; the gradient goes to each as it is."""
    out: Tensor = _SumOver.apply(x, team.name)  # type: ignore[no-untyped-call]
    return out


def sum_both(x: Tensor, team: Team) -> Tensor:
    """The sum over the team, on every rank; gradients, each rank's own part, are summed too."""
    out: Tensor = _SumBoth.apply(x, team.name)  # type: ignore[no-untyped-call]
    return out


def gather_sum(x: Tensor, dim: int, team: Team) -> Tensor:
    """All ranks' x, joined along `dim`; gradients are summed, and each rank keeps its own part's."""
    out: Tensor = _GatherSum.apply(x, dim % x.dim(), team.name, team.size)  # type: ignore[no-untyped-call]
    return out


def sum_scatter(x: Tensor, dim: int, team: Team) -> Tensor:
    """This rank's part, along `dim`, of the sum over the team; its length must divide by the team's size."""
    out: Tensor = _SumScatter.apply(x, dim % x.dim(), team.name, team.size)  # type: ignore[no-untyped-call]
    return out


def gather_slice(x: Tensor, dim: int, team: Team) -> Tensor:
    """All ranks' x, joined along `dim`; of the gradient, which is the same on all, each keeps its part."""
    arguments = (x, dim % x.dim(), team.name, team.size, team.index)
    out: Tensor = _GatherSlice.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def own_part(x: Tensor, dim: int, team: Team) -> Tensor:
    """This rank's part of x along `dim`; no communication."""
    length = x.shape[dim] // team.size
    return x.narrow(dim, team.index * length, length)


# -- the collectives, without gradients ------------------------------------------------------------


def reduced(x: Tensor, team: str) -> Tensor:
    """The sum of x over the team's ranks."""
    started = torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", team)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out


def gathered(x: Tensor, dim: int, team: str, size: int) -> Tensor:
    """All ranks' x, joined along `dim`.

    Not by `all_gather_into_tensor`, which to Gloo is ALLGATHER_COALESCED. The two threads of a Gloo group
    note the name of what they did last in one string, without a lock, and one that is too long to lie within
    the string itself is then written into freed memory (torch 2.11 to 2.13). A compiler needs it, and to
    tensors without memory torch describes the other call as if it made a second output.
    """
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


def scattered(x: Tensor, dim: int, team: str, size: int) -> Tensor:
    """This rank's part along `dim` of the sum of x over the team's ranks."""
    cut = x.reshape(*x.shape[:dim], size, -1, *x.shape[dim + 1 :])
    parts = cut.movedim(dim, 0).flatten(0, 1).contiguous()
    started = torch.ops._c10d_functional.reduce_scatter_tensor(parts, "sum", size, team)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str) -> Tensor:
        context.team = team
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return reduced(slopes[0], context.team), None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str) -> Tensor:
        return reduced(x, team)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None


class _SumBoth(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, team: str) -> Tensor:
        context.team = team
        return reduced(x, team)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return reduced(slopes[0], context.team), None


class _GatherSum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dim: int, team: str, size: int) -> Tensor:
        context.dim, context.team, context.size = dim, team, size
        return gathered(x, dim, team, size)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        return scattered(slopes[0], context.dim, context.team, context.size), None, None, None


class _SumScatter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dim: int, team: str, size: int) -> Tensor:
        context.dim, context.team, context.size = dim, team, size
        return scattered(x, dim, team, size)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        return gathered(slopes[0], context.dim, context.team, context.size), None, None, None


class _GatherSlice(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dim: int, team: str, size: int, index: int) -> Tensor:
        context.dim, context.start, context.length = dim, index * x.shape[dim], x.shape[dim]
        return gathered(x, dim, team, size)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None, None]:
        return slopes[0].narrow(context.dim, context.start, context.length), None, None, None, None
