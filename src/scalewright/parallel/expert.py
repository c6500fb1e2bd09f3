"""Expert parallelism: a rank of `ep` holds E/ep experts, each cut over `etp`; tokens travel to them and back.

    rank 0   a b | c | d e | .      rows by expert 0 1 2 3, of ep 2: experts 0 1 here, 2 3 on rank 1
    rank 1   f | . | g | h
                  dispatch                    by expert                 combine
    rank 0   a b c | f          ->  a b f | c      -> its experts ->    the same way back
    rank 1   d e | g h          ->  d e g | h

(Lepikhin et al. 2020, arXiv 2006.16668 §3.2.) The sizes of an all-to-all's parts are known on the host: the
counts of all ranks are exchanged first, and copied once a layer. With etp each rank of it sends its rows to
the others, and gets their sums back: F is cut, so each computes a part of every output. A bias of outputs is
added once, to the sum, by the rank that gets it.

Shared experts need no other rank's tokens (DeepSeek-AI 2024, arXiv 2401.06066 §3.2): they compute while rows
travel to routed experts and back, so that each of the two exchanges has half of them to hide behind, cut where
Megatron-LM's `--moe-shared-expert-overlap` cuts them. The same operators on the same numbers, in another order:

    rows       there ------------>            experts          back ------------->
    shared     gate, up, activation                            down
               '------ hidden -----'                           '---- hidden ----'

    backward   back's gradient travels beside down's backward, there's beside that of gate and up

The model stays plain. `apply_expert` wraps the forward of every `experts`, whose weights `cut_parameters` has made this
rank's part; an expert without tokens works on no rows, so that its gradients are zeros. A layer's `forward` asks
for the routed experts first; from within them, once rows are on their way, `around` calls the shared ones, and
from within these, before `down`, the routed experts. How rows travel is behind one interface, `Trip`. The
backward follows by itself: autograd runs what the forward ran last first, so that the shared experts' part of
it lies between the start of a gradient's exchange and the wait for it (functions.py: `start_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from scalewright.model import moe
from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE, Stack, inverse
from scalewright.model.torch_private import not_compiled
from scalewright.parallel.functions import (
    AxisGroup,
    UnderWay,
    axis_group,
    exchange,
    exchanged,
    gathered,
    start_exchange,
)
from scalewright.parallel.mesh import Mesh
from scalewright.spec.expert_volumes import overlaps_shared
from scalewright.spec.layout import Layout

Experts = Callable[[Tensor, Tensor], Tensor]


class Coming(Protocol):
    """Rows on their way."""

    def arrived(self) -> Tensor:
        """The rows, when they are there; once."""


class Trip(Protocol):
    """One forward's way of rows to the ranks of their experts, and back; both have a backward.

    `counts` int64 [E/ep]: the rows that each of this rank's experts gets; `experts`: the expert of each row.
    """

    counts: Tensor
    experts: Tensor

    def there(self, rows: Tensor) -> Coming:
        """Starts [R, D], sorted by expert, on their way -> the rows that come to this rank's experts."""

    def back(self, rows: Tensor, bias: Tensor | None) -> Coming:
        """Starts what became of those that arrived on their way -> [R, D], each row in its place.

        Where ranks share an expert by its width, `bias` [E/ep, D] is still to be added to their sum.
        """


# (rows of each expert on this rank int64 [E], how many rows in all) -> a trip
MakeTrip = Callable[[Tensor, int], Trip]


def apply_expert(decoder: Decoder, layout: Layout, mesh: Mesh, make_trip: MakeTrip | None = None) -> None:
    """Makes the experts of a decoder, or of a pipeline's cut of one, take tokens from all ranks, in place.

    `make_trip` is how tokens travel; null: by all-to-alls. After `apply_tensor`.
    """
    if mesh.size("ep") * mesh.size("etp") == 1:
        return
    if make_trip is None:
        ep, etp = (axis_group(mesh, axis) if mesh.size(axis) > 1 else None for axis in ("ep", "etp"))
        make_trip = partial(AllToAll, ep=ep, etp=etp)
    overlaps = overlaps_shared(decoder.spec, layout)
    for module in decoder.modules():
        if isinstance(module, MoE):
            overlap = OverlapSharedExperts(module) if overlaps else None
            experts = module.experts
            down, inner = experts.down, experts.forward
            if mesh.size("etp") > 1 and down.bias is not None:
                down.forward = partial(down.apply_to, bias=None)  # type: ignore[method-assign]
            run = partial(_experts_of_all, inner, down, make_trip, overlap)
            experts.forward = run  # type: ignore[method-assign]


def _experts_of_all(
    inner: Experts, down: Stack, make_trip: MakeTrip, overlap: OverlapSharedExperts | None, rows: Tensor, counts: Tensor
) -> Tensor:
    """rows [R, D], sorted by expert; counts int64 [E] -> [R, D]."""
    trip = make_trip(counts, len(rows))
    there = trip.there(rows)

    def compute() -> Coming:
        arrived = there.arrived()
        by_expert = trip.experts.argsort(stable=True)
        done = inner(arrived[by_expert], trip.counts)
        return trip.back(done[inverse(by_expert)], down.bias)

    return (compute() if overlap is None else overlap.around(compute)).arrived()


class AllToAll:
    """A `Trip` by all-to-alls of uneven parts: over ep, and over etp, whose ranks each get all rows."""

    def __init__(self, counts: Tensor, rows: int, ep: AxisGroup | None, etp: AxisGroup | None) -> None:
        self.ep, self.etp = ep, etp
        ranks = 1 if ep is None else ep.size
        send = counts.view(ranks, -1)  # [ep, E/ep]
        come = send if ep is None else exchanged(send, [1] * ranks, [1] * ranks, ep)
        all_come = come[None] if etp is None else gathered(come[None], 0, etp)  # [etp, ep, E/ep]
        counted = [send.sum(1), come.sum(1), all_come.sum((1, 2))]
        # the last: rows that each rank of etp got
        self.sent, self.come, self.shared = moe.on_host(counted, [rows, rows, rows * len(all_come)])
        self.counts = all_come.sum((0, 1))
        local = torch.arange(send.shape[1], device=counts.device).expand(len(self.shared) * ranks, -1)
        self.experts = local.flatten().repeat_interleave(all_come.flatten(), output_size=sum(self.shared))

    def there(self, rows: Tensor) -> Coming:
        """Over ep while others compute; then over etp."""
        if self.ep is None:
            assert self.etp is not None
            return _start(*self._to_all(rows), self.etp)
        then = None if self.etp is None else self._over_etp
        return _start(rows, self.sent, self.come, self.ep, then)

    def back(self, rows: Tensor, bias: Tensor | None) -> Coming:
        """The last exchange of the two while others compute."""
        if self.etp is None:
            assert self.ep is not None
            return _start(rows, self.come, self.sent, self.ep)
        parts = [self.shared[self.etp.index]] * self.etp.size
        if self.ep is None:
            return _start(rows, self.shared, parts, self.etp, partial(self._summed, bias=bias))
        summed = self._summed(exchange(rows, self.shared, parts, self.etp), bias)
        return _start(summed, self.come, self.sent, self.ep)

    def _over_etp(self, rows: Tensor) -> Tensor:
        assert self.etp is not None
        return exchange(*self._to_all(rows), self.etp)

    def _to_all(self, rows: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """What an exchange over etp takes: a copy of the rows for each of its ranks."""
        assert self.etp is not None
        return rows.repeat(self.etp.size, 1), [len(rows)] * self.etp.size, self.shared

    def _summed(self, parts: Tensor, bias: Tensor | None) -> Tensor:
        """The ranks' parts of every output [etp R, D] -> their sums [R, D], with their experts' bias."""
        assert self.etp is not None
        # no -1: a rank may have no rows
        sums = parts.view(self.etp.size, self.shared[self.etp.index], parts.shape[-1]).sum(dim=0)
        return sums if bias is None else sums + bias[torch.split(self.experts, self.shared)[self.etp.index]]


@dataclass(frozen=True)
class _InFlight:
    """An exchange that was started, and what is still to be done with what arrives."""

    way: UnderWay
    then: Callable[[Tensor], Tensor] | None = None

    @not_compiled()  # a graph would wait for it where it starts
    def arrived(self) -> Tensor:
        rows = self.way.arrived()
        return rows if self.then is None else self.then(rows)


def _start(
    rows: Tensor, send: list[int], receive: list[int], group: AxisGroup, then: Callable[[Tensor], Tensor] | None = None
) -> Coming:
    coming: Coming = _in_flight(rows, send, receive, group, then)
    return coming


@not_compiled()
def _in_flight(
    rows: Tensor, send: list[int], receive: list[int], group: AxisGroup, then: Callable[[Tensor], Tensor] | None
) -> Coming:
    return _InFlight(start_exchange(rows, send, receive, group), then)


T = TypeVar("T")


class OverlapSharedExperts:
    """Runs a layer's shared experts in two halves around what its routed experts do."""

    def __init__(self, moe: MoE) -> None:
        assert moe.shared is not None
        self._shared = moe.shared_output  # with its gate, and as tensor parallelism has wrapped it
        self._down = moe.shared.down.forward
        self._whole = moe.forward
        self._x: Tensor | None = None  # of the running forward
        self._out: Tensor | None = None
        self._between: Callable[[], None] | None = None
        moe.forward = self._forward  # type: ignore[method-assign]
        moe.shared_output = self._beside  # type: ignore[method-assign]
        moe.shared.down.forward = self._second_half  # type: ignore[assignment, method-assign]

    @not_compiled(recursive=False)
    def _forward(self, x: Tensor) -> Tensor:
        self._x = x
        try:
            return self._whole(x)
        finally:
            self._x = self._out = self._between = None

    @not_compiled(recursive=False)
    def around(self, compute: Callable[[], T]) -> T:
        """The first half of the shared experts, then `compute`, then their second half; its result."""
        assert self._x is not None
        results: list[T] = []
        self._between = lambda: results.append(compute())
        self._out = self._shared(self._x)
        return results[0]

    @not_compiled(recursive=False)
    def _second_half(self, hidden: Tensor) -> Tensor:
        between, self._between = self._between, None
        assert between is not None
        between()
        out: Tensor = self._down(hidden)
        return out

    @not_compiled(recursive=False)
    def _beside(self, x: Tensor) -> Tensor:
        """What the shared experts made of x, when its tokens were on their way."""
        assert self._out is not None
        return self._out
