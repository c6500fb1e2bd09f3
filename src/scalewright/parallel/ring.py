"""Attention over keys and values that lie on all ranks of `cp`: they pass in a ring, or are gathered.

    turn          0        1        2      of rank 2, cp 3          keys and values of rank r - turn
    keys of       rank 2   rank 1   rank 0
    meanwhile     -> 0     -> 0     -      those of the next turn arrive while this one computes

    backward      the same turns; the gradient of a rank's keys goes along from turn 1 on, each rank adds its
                  share, and after the last turn it is at home: c-1 messages of keys, c-1 of gradients

(Liu et al. 2023, arXiv 2310.01889.) Outputs are merged in fp32. With `passes=False` the keys and values of
all ranks are gathered before, again in the backward, and their gradients reduced and scattered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalewright.model.attend import Part, Scores, add_sinks, attend, attend_backward, merge, sinks_gradient
from scalewright.parallel.functions import AxisGroup, Sent, gathered, scattered, send_on


def attend_parts(
    q: Tensor, k: Tensor, v: Tensor, parts: tuple[Part | None, ...], scores: Scores, group: AxisGroup, *, passes: bool,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """q [B, H, T/cp, K], k [B, G, T/cp, K], v [B, G, T/cp, W] -> [B, H, T/cp, W]; `parts[i]` is of rank - i.

    The first part shows every query a key, itself at least. `sinks` [H]: of this rank's heads, or None.
    """
    out: Tensor = _AttendParts.apply(q, k, v, sinks, parts, scores, group, passes)  # type: ignore[no-untyped-call]
    return out


class _AttendParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, parts: tuple[Part | None, ...],
        scores: Scores, group: AxisGroup, passes: bool,
    ) -> Tensor:  # fmt: skip
        turns, sizes = _turns(torch.cat([k, v], dim=-1), group, passes=passes), [k.shape[-1], v.shape[-1]]
        out = lse = q.new_empty(0)
        for turn, part in enumerate(parts):
            keys, values = torch.split(turns.at(turn), sizes, dim=-1)
            if part is None:
                continue
            rows = part.queries
            more, more_lse = attend(q[:, :, rows], keys[:, :, part.keys], values[:, :, part.keys], part, scores)
            if turn == 0:
                out, lse = more.float(), more_lse.float()
            else:
                merge(out[:, :, rows], lse[:, :, rows], more, more_lse)
        if sinks is not None:
            add_sinks(out, lse, sinks)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, sinks)
        ctx.parts, ctx.scores, ctx.group, ctx.passes = parts, scores, group, passes
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, sinks = ctx.saved_tensors
        grad_output = grad_outputs[0].contiguous()
        turns = _turns(torch.cat([k, v], dim=-1), ctx.group, passes=ctx.passes)
        sizes = [k.shape[-1], v.shape[-1]]
        home = _Home(ctx.group) if ctx.passes else _Scattered(ctx.group)
        grad_q = torch.zeros_like(q, dtype=torch.float32)
        for turn, part in enumerate(ctx.parts):
            whole = turns.at(turn)
            grads = torch.zeros_like(whole)
            if part is not None:
                rows, columns = part.queries, part.keys
                keys, values = torch.split(whole[:, :, columns], sizes, dim=-1)
                of_q, of_k, of_v = attend_backward(
                    grad_output[:, :, rows], q[:, :, rows], keys, values,
                    out[:, :, rows], lse[:, :, rows].contiguous(), part, ctx.scores,
                )  # fmt: skip
                grad_q[:, :, rows] += of_q
                grads[:, :, columns] = torch.cat([of_k, of_v], dim=-1)
            home.add(turn, grads)
        grad_k, grad_v = torch.split(home.total(), sizes, dim=-1)
        grad_sinks = None if sinks is None else sinks_gradient(grad_output, out, lse, sinks)
        return grad_q.to(q.dtype), grad_k, grad_v, grad_sinks, None, None, None, None


def _turns(local: Tensor, group: AxisGroup, *, passes: bool) -> _Passed | _Gathered:
    return _Passed(local, group) if passes else _Gathered(local, group)


class _Passed:
    """Keys and values [B, G, T/cp, K + W] of the rank before, turn after turn."""

    def __init__(self, local: Tensor, group: AxisGroup) -> None:
        self.current, self.group = local, group
        self.coming: Sent | None = None

    def at(self, turn: int) -> Tensor:
        """Those of a turn, asked for in order; the next ones start on their way."""
        if self.coming is not None:
            self.current = self.coming.arrived()
        self.coming = send_on(self.current, self.group) if turn + 1 < self.group.size else None
        return self.current


class _Gathered:
    def __init__(self, local: Tensor, group: AxisGroup) -> None:
        self.all, self.group = gathered(local[None], 0, group), group

    def at(self, turn: int) -> Tensor:
        """Those of a turn."""
        return self.all[(self.group.index - turn) % self.group.size]


class _Home:
    """Gradients of keys and values on their way round."""

    def __init__(self, group: AxisGroup) -> None:
        self.group = group
        self.own: Tensor | None = None
        self.moving: Sent | None = None

    def add(self, turn: int, gradient: Tensor) -> None:
        """This rank's share of the gradient of a turn's keys and values."""
        if turn == 0:
            self.own = gradient
            return
        if self.moving is not None:
            gradient = gradient + self.moving.arrived()
        self.moving = send_on(gradient, self.group)

    def total(self) -> Tensor:
        """The gradient of this rank's own."""
        assert self.own is not None
        assert self.moving is not None
        return self.own + self.moving.arrived()


class _Scattered:
    """Gradients of all ranks' keys and values, reduced at the end."""

    def __init__(self, group: AxisGroup) -> None:
        self.group = group
        self.shares: dict[int, Tensor] = {}

    def add(self, turn: int, gradient: Tensor) -> None:
        """This rank's share of the gradient of a turn's keys and values."""
        self.shares[(self.group.index - turn) % self.group.size] = gradient

    def total(self) -> Tensor:
        """The gradient of this rank's own."""
        return scattered(torch.stack([self.shares[rank] for rank in range(self.group.size)]), 0, self.group)[0]
