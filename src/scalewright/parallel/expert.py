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

The model stays plain: `apply_expert` wraps the forward of every `experts`, whose weights `cut_parameters` has
made this rank's part. An expert without tokens works on no rows, so that its gradients are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE, Stack, inverse, on_host
from scalewright.parallel.functions import AxisGroup, axis_group, exchange, exchanged, gathered
from scalewright.parallel.mesh import Mesh

Experts = Callable[[Tensor, Tensor], Tensor]


def apply_expert(decoder: Decoder, mesh: Mesh) -> None:
    """Makes the experts of a decoder, or of a pipeline's cut of one, take tokens from all ranks, in place."""
    if mesh.size("ep") * mesh.size("etp") == 1:
        return
    ep, etp = (axis_group(mesh, axis) if mesh.size(axis) > 1 else None for axis in ("ep", "etp"))
    for module in decoder.modules():
        if isinstance(module, MoE):
            experts = module.experts
            down, inner = experts.down, experts.forward
            if etp is not None and down.bias is not None:
                down.forward = partial(down.apply_to, bias=None)  # type: ignore[method-assign]
            experts.forward = partial(_experts_of_all, inner, down, ep, etp)  # type: ignore[method-assign]


def _experts_of_all(
    inner: Experts,
    down: Stack,
    ep: AxisGroup | None,
    etp: AxisGroup | None,
    rows: Tensor,
    counts: Tensor,
) -> Tensor:
    """rows [R, D], sorted by expert; counts int64 [E] -> [R, D]."""
    trip = _Trip(counts, len(rows), ep, etp)
    arrived = trip.there(rows)
    by_expert = trip.experts.argsort(stable=True)
    done = inner(arrived[by_expert], trip.counts)
    return trip.back(done[inverse(by_expert)], down.bias)


class _Trip:
    """Rows to the ranks of their experts, and back.

    `counts` int64 [E/ep]: the rows that each of this rank's experts gets; `experts`: the expert of each row.
    """

    def __init__(self, counts: Tensor, rows: int, ep: AxisGroup | None, etp: AxisGroup | None) -> None:
        self.ep, self.etp = ep, etp
        ranks = 1 if ep is None else ep.size
        send = counts.view(ranks, -1)  # [ep, E/ep]
        come = send if ep is None else exchanged(send, [1] * ranks, [1] * ranks, ep)
        all_come = come[None] if etp is None else gathered(come[None], 0, etp)  # [etp, ep, E/ep]
        counted = [send.sum(1), come.sum(1), all_come.sum((1, 2))]
        # the last: rows that each rank of etp got
        self.sent, self.come, self.shared = on_host(counted, [rows, rows, rows * len(all_come)])
        self.counts = all_come.sum((0, 1))
        local = torch.arange(send.shape[1], device=counts.device).expand(len(self.shared) * ranks, -1)
        self.experts = local.flatten().repeat_interleave(all_come.flatten(), output_size=sum(self.shared))

    def there(self, rows: Tensor) -> Tensor:
        """[R, D] -> the rows that come to this rank's experts."""
        if self.ep is not None:
            rows = exchange(rows, self.sent, self.come, self.ep)
        if self.etp is None:
            return rows
        return exchange(rows.repeat(self.etp.size, 1), [len(rows)] * self.etp.size, self.shared, self.etp)

    def back(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """What `there` returned, each row in its place -> [R, D]; with etp, `bias` [E/ep, D] is added."""
        if self.etp is not None:
            count = self.shared[self.etp.index]
            parts = exchange(rows, self.shared, [count] * self.etp.size, self.etp)
            rows = parts.view(self.etp.size, count, -1).sum(dim=0)
            if bias is not None:
                rows = rows + bias[torch.split(self.experts, self.shared)[self.etp.index]]
        if self.ep is not None:
            rows = exchange(rows, self.come, self.sent, self.ep)
        return rows
