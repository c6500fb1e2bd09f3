"""Communication with a gradient: a collective in the forward, and its mirror in the backward.

    name            forward                      backward
    copy_to         nothing                      all-reduce         into column-parallel layers
    sum_over        all-reduce                   nothing            out of row-parallel layers
    sum_both        all-reduce                   all-reduce         a statistic that every rank needs
    gather_sum      all-gather along a dim       reduce-scatter     into them, with sequence parallelism
    sum_scatter     reduce-scatter along a dim   all-gather         out of them, with sequence parallelism
    gather_slice    all-gather along a dim       this rank's slice  where all ranks then do the same work
    swap            all-to-all of two dims       all-to-all back    whole rows of some heads (Ulysses)
    exchange        all-to-all of uneven parts   all-to-all back    tokens to their experts
    start_exchange  its start, then the wait     the mirror's start, then the wait: in between both passes
                                                 compute something else

(Shoeybi et al. 2019, arXiv 1909.08053 §3: f, g; Korthikanti et al. 2022, arXiv 2205.05198 §4.2: g, g-bar.) Nothing
here computes: matrix products stay `F.linear`, so that a backward can be split into an input part and a weight part. A
gradient that arrives is complete where tensors are equal on all ranks, and partial, still to be summed, where each rank
did a part of the work; these functions turn one kind into the other.

The collectives are PyTorch's functional ones: they trace under `torch.compile`, have shapes without a network (fake
tensors), and a dispatch mode sees the group's name. In a compiled graph a gather along a later dim is a gather along
the first, split and concatenated, and a reduce-scatter its mirror: as torch.distributed._functional_collectives has
them, so that inductor's pass for async TP (`_micro_pipeline_tp`, off by default) finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scalewright.model.torch_private import collectives
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.timers import Span

Clock = Callable[[], Span]  # `with clock(): ...` around a collective (parallel/timers.py)


@dataclass(frozen=True)
class AxisGroup:
    """The process group along one axis, as functional collectives take it, and this rank's index in it."""

    name: str
    size: int
    index: int
    clock: Clock | None = field(default=None, compare=False, repr=False)


def axis_group(mesh: Mesh, axis: str) -> AxisGroup:
    """The group of an axis that has two ranks or more."""
    if (group := mesh.group(axis)) is None:
        raise ValueError(f"axis '{axis}' has one rank: it has no process group")
    return AxisGroup(group.group_name, mesh.size(axis), mesh.index(axis), partial(mesh.timers.comm, axis))


def copy_to(x: Tensor, group: AxisGroup) -> Tensor:
    """x as it is; gradients are summed over the group."""
    out: Tensor = _CopyTo.apply(x, group)  # type: ignore[no-untyped-call]
    return out


def sum_over(x: Tensor, group: AxisGroup) -> Tensor:
    """The sum over the group, on every rank; the gradient goes to each as it is."""
    out: Tensor = _SumOver.apply(x, group)  # type: ignore[no-untyped-call]
    return out


def sum_both(x: Tensor, group: AxisGroup) -> Tensor:
    """The sum over the group, on every rank; gradients, each rank's own part, are summed too."""
    return sum_over(copy_to(x, group), group)


def gather_sum(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """All ranks' x, joined along `dim`; gradients are summed, and each rank keeps its own part's."""
    out: Tensor = _GatherSum.apply(x, dim % x.dim(), group)  # type: ignore[no-untyped-call]
    return out


def sum_scatter(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """This rank's part, along `dim`, of the sum over the group, whose size must divide the length."""
    out: Tensor = _SumScatter.apply(x, dim % x.dim(), group)  # type: ignore[no-untyped-call]
    return out


def gather_slice(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """All ranks' x, joined along `dim`; of the gradient, which is the same on all, each keeps its part."""
    out: Tensor = _GatherSlice.apply(x, dim % x.dim(), group)  # type: ignore[no-untyped-call]
    return out


def swap(x: Tensor, split: int, join: int, group: AxisGroup) -> Tensor:
    """Each rank's part of x along `split` goes to that rank; what arrives is joined along `join`."""
    out: Tensor = _Swap.apply(x, split % x.dim(), join % x.dim(), group)  # type: ignore[no-untyped-call]
    return out


def exchange(x: Tensor, send: list[int], receive: list[int], group: AxisGroup) -> Tensor:
    """`send[i]` rows of x go to rank i, `receive[i]` come from it; those of rank 0 first."""
    out: Tensor = _Exchange.apply(x, send, receive, group)  # type: ignore[no-untyped-call]
    return out


def start_exchange(x: Tensor, send: list[int], receive: list[int], group: AxisGroup) -> UnderWay:
    """As `exchange`, not waited for."""
    way = _Way(send, receive, group)
    return UnderWay(_Start.apply(x, way), way)  # type: ignore[no-untyped-call]


def local_part(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """This rank's part of x along `dim`; no communication."""
    length = x.shape[dim] // group.size
    return x.narrow(dim, group.index * length, length)


def reduced(x: Tensor, group: AxisGroup) -> Tensor:
    """The sum of x over the group's ranks."""
    with _clock(group):
        started = collectives.all_reduce(x.contiguous(), "sum", group.name)
        out: Tensor = collectives.wait_tensor(started)
    return out


def gathered(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """All ranks' x, joined along `dim`."""
    x, size = x.contiguous(), group.size
    with _clock(group):
        out: Tensor = collectives.wait_tensor(start_all_gather(x, group))  # [size * x.shape[0], ...]
    if dim == 0:
        return out
    if torch.compiler.is_compiling():  # the form that inductor fuses with matrix products: see above
        return torch.cat(out.chunk(size), dim)
    return out.view(size, *x.shape).movedim(0, dim).flatten(dim, dim + 1)


def start_all_gather(x: Tensor, group: AxisGroup) -> Tensor:
    """All ranks' x, joined along the first dim, once it has been waited for.

    Not by `all_gather_into_tensor`, which to Gloo is ALLGATHER_COALESCED. The two threads of a Gloo group keep the
    name of their last operation in one string, without a lock, and one too long to lie within the string itself is
    then written into freed memory (torch 2.11 to 2.13). A compiler needs it, and a dry run (dry_run/no_numbers.py).
    """
    started: Tensor
    if torch.compiler.is_compiling():
        started = collectives.all_gather_into_tensor(x, group.size, group.name)
    else:
        whole = x.new_empty(group.size * x.shape[0], *x.shape[1:])
        started = collectives.all_gather_into_tensor_out(x, group.size, group.name, out=whole)
    return started


def scattered(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    """This rank's part along `dim` of the sum of x over the group's ranks."""
    if torch.compiler.is_compiling():
        parts = torch.cat(x.chunk(group.size, dim)) if dim else x.contiguous()
    else:
        cut = x.reshape(*x.shape[:dim], group.size, -1, *x.shape[dim + 1 :])
        parts = cut.movedim(dim, 0).flatten(0, 1).contiguous()
    with _clock(group):
        started = collectives.reduce_scatter_tensor(parts, "sum", group.size, group.name)
        out: Tensor = collectives.wait_tensor(started)
    return out


def swapped(x: Tensor, split: int, join: int, group: AxisGroup) -> Tensor:
    """Each rank's part of x along `split` goes to that rank; what arrives is joined along `join`."""
    parts = torch.unflatten(x, split, (group.size, -1)).movedim(split, 0).contiguous()
    with _clock(group):
        ones = [1] * group.size
        started = collectives.all_to_all_single(parts, ones, ones, group.name)
        out: Tensor = collectives.wait_tensor(started)  # [size, ...]
    return out.movedim(0, join).flatten(join, join + 1)


def exchanged(x: Tensor, send: list[int], receive: list[int], group: AxisGroup) -> Tensor:
    """`send[i]` rows of x go to rank i, `receive[i]` come from it; those of rank 0 first."""
    return arrived(sent(x, send, receive, group), group)


def sent(x: Tensor, send: list[int], receive: list[int], group: AxisGroup) -> Tensor:
    """The same, on its way: its numbers are there when it has `arrived`."""
    with _clock(group):
        started: Tensor = collectives.all_to_all_single(x.contiguous(), receive, send, group.name)
    return started


def arrived(coming: Tensor, group: AxisGroup) -> Tensor:
    """The tensor that was on its way, when all of it is there."""
    with _clock(group):
        out: Tensor = collectives.wait_tensor(coming)
    return out


@dataclass(frozen=True)
class Sent:
    """A message of every rank to the next one, on its way."""

    tensor: Tensor
    group: AxisGroup

    def arrived(self) -> Tensor:
        """What the rank before has sent."""
        return arrived(self.tensor, self.group)


def send_on(x: Tensor, group: AxisGroup) -> Sent:
    """Starts sending x to the next rank of the group, the last one's to the first; all of one shape.

    As an all-to-all in which every rank sends to one: NCCL makes of it one send and one receive.
    """
    count = len(x)
    to = [count * (rank == (group.index + 1) % group.size) for rank in range(group.size)]
    since = [count * (rank == (group.index - 1) % group.size) for rank in range(group.size)]
    return Sent(collectives.all_to_all_single(x.contiguous(), since, to, group.name), group)


def _clock(group: AxisGroup) -> AbstractContextManager[None]:
    """The group's clock; none in a graph that is being compiled, which it would break."""
    return nullcontext() if group.clock is None or torch.compiler.is_compiling() else group.clock()


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: AxisGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return reduced(grad_outputs[0], ctx.group), None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: AxisGroup) -> Tensor:
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


class _GatherSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: AxisGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return scattered(grad_outputs[0], ctx.dim, ctx.group), None, None


class _SumScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: AxisGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return scattered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return gathered(grad_outputs[0], ctx.dim, ctx.group), None, None


class _GatherSlice(_GatherSum):
    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return local_part(grad_outputs[0], ctx.dim, ctx.group), None, None


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: AxisGroup) -> Tensor:
        ctx.split, ctx.join, ctx.group = split, join, group
        return swapped(x, split, join, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        return swapped(grad_outputs[0], ctx.join, ctx.split, ctx.group), None, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, send: list[int], receive: list[int], group: AxisGroup) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return exchanged(x, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        return exchanged(grad_outputs[0], ctx.receive, ctx.send, ctx.group), None, None, None


@dataclass
class _Way:
    """One exchange's sizes, and the gradient that is on its way back."""

    send: list[int]
    receive: list[int]
    group: AxisGroup
    returning: Tensor | None = None


@dataclass(frozen=True)
class UnderWay:
    """An exchange that was started. Its tensor has no numbers before it has arrived."""

    coming: Tensor
    way: _Way

    def arrived(self) -> Tensor:
        """What came; its gradient starts on its way back, and is waited for where this one started."""
        out: Tensor = _Finish.apply(self.coming, self.way)  # type: ignore[no-untyped-call]
        return out


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, way: _Way) -> Tensor:
        ctx.way = way
        return sent(x, way.send, way.receive, way.group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        returning, ctx.way.returning = ctx.way.returning, None
        return arrived(returning, ctx.way.group), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coming: Tensor, way: _Way) -> Tensor:
        ctx.way = way
        return arrived(coming, way.group).view_as(coming)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        way = ctx.way
        way.returning = sent(grad_outputs[0], way.receive, way.send, way.group)
        return grad_outputs[0], None  # of the shape that came: `_Start` takes what has been sent
