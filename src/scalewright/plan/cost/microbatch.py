"""Seconds of one micro-batch on one pipeline rank: kernels, exposed exchanges, waits for the host.

    forward   n (f + ep + cp) + tp + ends                           n: blocks of the rank
    backward  n (b + again + (1 + r) ep + (2 + r) cp) + tp + ends   r: share of blocks that run again; of
                                                                    Ulysses 1 + r
    waits     by the price list: for launches (price_list.py), or for Python around operators (cpu.py)

Of this package's own trainer ep is what it sends less what shared experts compute meanwhile.

Keys and values pass twice in a backward: to compute scores again, and their gradients. Heads pass once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank, PricedColumns
from scalewright.plan.cost.exchange import beside_experts, context_parallel, expert_parallel
from scalewright.plan.cost.price_list import PriceList, price_list
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.cost.volumes import Volumes
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA, PARTS
from scalewright.plan.request import CP_KINDS
from scalewright.spec.schedules.bubble import RankCost
from scalewright.spec.volumes import During

EXPERTS, SHARED, SELECTIVE = PARTS.index("experts"), PARTS.index("shared"), RECOMPUTE.index("selective")
# Passes with exchanges, and the seconds of their products over those of a forward
PASSES: dict[During, float] = {"forward": 1.0, "recompute": 1.0, "backward": 2.0}


@dataclass(frozen=True)
class Exchanges:
    """What the ranks of a pipeline exchange: a block's seconds by cp and ep, and the lists of each rank."""

    cp: np.ndarray
    ep: np.ndarray
    volumes: Volumes
    prices: PriceList


def exchanges(at: PricedColumns) -> Exchanges:
    """Made once for all ranks of a pipeline."""
    prices = price_list(at)
    return Exchanges(context_parallel(at, prices), expert_parallel(at, prices), Volumes(at), prices)


@dataclass(frozen=True)
class Micro:
    """A micro-batch on one pipeline rank; seconds a row."""

    compute: np.ndarray
    recompute: np.ndarray
    tp: np.ndarray
    cp: np.ndarray
    ep: np.ndarray
    host: np.ndarray  # waits for the host
    front: np.ndarray  # the forward's part of all but the waits
    weight: np.ndarray  # the backward's weight part of all but the waits

    @property
    def device(self) -> np.ndarray:
        """Without waits for the host."""
        return np.asarray(self.compute + self.recompute + self.tp + self.cp + self.ep)

    @property
    def total(self) -> np.ndarray:
        """Forward and backward."""
        return np.asarray(self.device + self.host)

    @property
    def cost(self) -> RankCost:
        """Forward, backward and its weight part, each with its share of the waits."""
        slower = self.total / np.maximum(self.device, 1e-30)
        return RankCost(self.front * slower, (self.device - self.front) * slower, self.weight * slower)


def micro(at: PricedColumns, place: PipelineRank, sent: Exchanges) -> Micro:
    """A micro-batch on a pipeline rank."""
    n = place.blocks
    several = place.with_predictions(at.work.mtp).blocks  # whose forward and backward EXTRA has
    f, b, wg = (at.region(seconds, BLOCK) for seconds in (at.forward, at.backward, at.weight))
    parts = at.prices.parts[at.table.unit]
    front, back, weight = n * f, n * b, n * wg
    for share, regions in ((place.first, (BEFORE,)), (place.last, (AFTER, EXTRA))):
        if share.any():
            front = front + share * sum(at.region(at.forward, region) for region in regions)
            back = back + share * sum(at.region(at.backward, region) for region in regions)
            weight = weight + share * sum(at.region(at.weight, region) for region in regions)
    whole = at.rerun
    # "selective" redoes all but matrix products; the parts that others name are whole
    inside = np.where(at.table.recompute == SELECTIVE, at.prices.light[at.table.unit], (at.rerun_parts * parts).sum(1))
    again = several * (whole * f + inside)
    routed = np.maximum(whole, at.rerun_parts[:, EXPERTS])
    cp, ep = sent.cp, sent.ep
    tp_front, tp = tensor_parallel(at, place, sent)
    ep_front, of_ep = experts(at, place, sent, several * ep, several * (2 + routed) * ep)
    of_cp = several * (3 - (at.table.cp_kind == CP_KINDS.index("ulysses")) + whole) * cp
    device = (front + back) + again + tp + of_ep + of_cp
    return Micro(
        compute=front + back,
        recompute=again,
        tp=tp,
        cp=of_cp,
        ep=of_ep,
        host=sent.prices.waits(several, device),
        front=front + tp_front + ep_front + several * cp,
        weight=weight,
    )


def experts(
    at: PricedColumns, place: PipelineRank, sent: Exchanges, front: np.ndarray, whole: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Exposed seconds of tokens on their way to experts and back: of a micro-batch's forward, and of it all.

    Given are those of trainers in general. This package's own sends a rank's transfers, of which a pass hides
    what its shared experts compute meanwhile (parallel/expert.py); a backward computes twice as much.
    """
    transfers = sent.volumes.expert_parallel(place)
    if not transfers:
        return front, whole
    seconds = {during: np.zeros(len(at.table)) for during in PASSES}
    for transfer in transfers:
        if np.any(transfer.calls):
            taken = transfer.calls * sent.prices.network(transfer) / np.maximum(at.table.accumulation, 1.0)
            seconds[transfer.during] = seconds[transfer.during] + taken
    hides = sent.prices.beside * beside_experts(at) * (1 - at.c["overlap.slow"])
    shared = place.blocks * at.prices.parts[at.table.unit][:, SHARED]
    for during, times in PASSES.items():
        again = at.rerun if during == "recompute" else 1.0
        seconds[during] = seconds[during] - hides * np.minimum(seconds[during], times * again * shared)
    ours, total = sent.volumes.own, sum(seconds.values())
    return np.where(ours, seconds["forward"], front), np.where(ours, total, whole)


def tensor_parallel(at: Columns, place: PipelineRank, sent: Exchanges) -> tuple[np.ndarray, np.ndarray]:
    """Exposed seconds of a micro-batch: of its forward, and of all of it; overlap.tp of them are hidden."""
    front, whole = np.zeros(len(at.table)), np.zeros(len(at.table))
    for transfer in sent.volumes.tensor_parallel(place):
        if np.any(transfer.calls):
            taken = transfer.calls * sent.prices.network(transfer)
            whole = whole + taken
            front = front + taken if transfer.during == "forward" else front
    hidden = sent.prices.beside * at.c["overlap.tp"] * at.trainer.overlap_tp
    exposed = (1 - hidden) / np.maximum(at.table.accumulation, 1.0)
    return exposed * front, exposed * whole
