"""Seconds of a transfer over links with a delay and a rate (collectives.py): which ranks take part, and how.

axis           ranks                          stride
fsdp           a replica's data-parallel      tp
gradient       all data-parallel              tp
expert         those that share an expert     ep · etp
efsdp          of these, a replica's          ep · etp
ep             those among which experts are  etp
etp            those that share an expert     1
               by its width
cp             those that share sequences     tp
dp_replicate   replicas                       tp · a replica's ranks
islands        the same                       the same
tp, kv         tp                             1
tie            the pipeline's two ends        pp - 1 pipeline ranks
world          all                            1
pp             a sender and a receiver        collectives.py: `send`
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scalewright.plan.cost.collectives import all_reduce, all_to_all, gather, send
from scalewright.plan.cost.columns import Columns
from scalewright.spec.volumes import Transfer


class Links:
    """The links under a table's rows; of groups that are given, the collectives over them."""

    def __init__(self, at: Columns) -> None:
        self.at = at
        self.send, self.gather = partial(send, links=at.links), partial(gather, links=at.links)
        self.all_to_all = partial(all_to_all, links=at.links)
        self._priced: dict[tuple[str, str, int], tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, transfer: Transfer) -> np.ndarray:
        """Seconds of one call. A scatter takes as long as a gather of the same bytes: priced once."""
        size = np.asarray(transfer.bytes)
        kind = transfer.kind if transfer.kind in ("all_reduce", "all_to_all") else "gather"
        key = transfer.axis, kind, id(size)
        if key not in self._priced:
            self._priced[key] = size, self._seconds(transfer, size)  # the size keeps its id
        return self._priced[key][1]

    def _seconds(self, transfer: Transfer, size: np.ndarray) -> np.ndarray:
        if transfer.kind == "send":
            t, delay = self.at.table, self.at.c["link.message"]
            return np.asarray(self.send(size, t.devices / t.pp, t.devices) + delay)
        group, stride = groups(self.at, transfer.axis)
        if transfer.kind == "all_to_all":
            return np.asarray(self.all_to_all(size, group, stride))
        if transfer.kind != "all_reduce":
            return self.gather(size, group, stride)
        tree = all_reduce(size, group, stride, self.at.links)
        if transfer.axis not in ("gradient", "expert"):
            return tree
        # the constants of other trainers were fitted with rings for gradients, there and back
        return np.where(self.at.trainer.own > 0, tree, 2 * self.gather(size, group, stride))


def groups(at: Columns, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """How many ranks an axis of transfers has, and how far the next one is."""
    t = at.table
    ranks, stride = t.dp * t.cp, np.ones(len(t))
    summing = at.summing
    if axis == "fsdp":
        return ranks / t.dp_replicate, t.tp
    if axis == "gradient":
        return summing, t.tp
    if axis == "expert":
        return np.maximum(summing * t.tp / (t.ep * t.etp), 1.0), t.ep * t.etp
    if axis == "efsdp":
        return np.maximum(ranks / t.dp_replicate * t.tp / (t.ep * t.etp), 1.0), t.ep * t.etp
    if axis == "ep":
        return t.ep, t.etp
    if axis == "etp":
        return t.etp, stride
    if axis == "cp":
        return t.cp, t.tp
    if axis in ("dp_replicate", "islands"):
        return t.dp_replicate, t.tp * ranks / t.dp_replicate
    if axis == "tie":
        return np.minimum(t.pp, 2.0), np.maximum(t.pp - 1, 1) * t.devices / t.pp
    if axis == "world":
        return t.devices, stride
    return t.tp, stride


def message_bytes(at: Columns) -> np.ndarray:
    """Bytes of one activation that a rank sends: its part, or all of it where tp ranks repeat each other."""
    t = at.table
    whole = (at.trainer.whole_p2p > 0) | ((at.trainer.own > 0) & (t.sp == 0))
    return np.floor(at.work.stream / np.where(whole, 1.0, t.tp))
