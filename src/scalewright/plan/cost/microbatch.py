"""Seconds of one micro-batch on one pipeline rank: kernels, exposed exchanges, waits for the host.

    forward   n (f + ep + cp) + tp + ends                           n: blocks of the rank
    backward  n (b + again + (1 + r) ep + (2 + r) cp) + tp + ends   r: share of blocks that run again
    waits     (device^6 + host^6)^(1/6) - device: the slower of both, rounded where they are alike; and the
              share moe.sync of what the host launches after it has read the tokens of every expert

Context parallelism exchanges keys and values twice in a backward: to recompute scores, and their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost import work as w
from scalewright.plan.cost.columns import Columns, Place
from scalewright.plan.cost.exchange import Exchange, context_parallel, expert_parallel
from scalewright.plan.cost.kernels import immature
from scalewright.plan.cost.links import Links
from scalewright.plan.cost.parts import PARTS
from scalewright.plan.cost.volumes import Volumes
from scalewright.plan.frameworks import HOSTS
from scalewright.spec.schedules.unequal import RankCost

EXPERTS = PARTS.index("experts")
UNFUSED_LAUNCHES = 1.3  # of an expert layer: index operations one by one
AN_EXPERT = 9 / 150  # launches of an expert's three products forward and back, over a dense block's
CORNER = 6  # how sharply device and host take turns in being the slower


@dataclass(frozen=True)
class Exchanges:
    """What the ranks of a pipeline exchange: a block's by cp and ep, and the lists of each rank."""

    cp: Exchange
    ep: Exchange
    volumes: Volumes
    links: Links


def exchanges(at: Columns) -> Exchanges:
    """Made once for all ranks of a pipeline."""
    return Exchanges(context_parallel(at), expert_parallel(at), Volumes(at), Links(at))


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


def micro(at: Columns, place: Place, sent: Exchanges) -> Micro:
    """A micro-batch on a pipeline rank."""
    n = place.blocks
    f, b, wg = (at.region(one, w.BLOCK) for one in (at.forward, at.backward, at.weight))
    parts = at.prices.parts[at.table.unit]
    front, back, weight = n * f, n * b, n * wg
    for share, regions in ((place.first, (w.BEFORE,)), (place.last, (w.AFTER, w.EXTRA))):
        if not share.any():
            continue
        front = front + share * sum(at.region(at.forward, region) for region in regions)
        back = back + share * sum(at.region(at.backward, region) for region in regions)
        weight = weight + share * sum(at.region(at.weight, region) for region in regions)
    whole = at.rerun
    again = n * (whole * f + (at.rerun_parts * parts).sum(1))
    routed = np.maximum(whole, at.rerun_parts[:, EXPERTS])
    cp, ep = sent.cp.seconds, sent.ep.seconds
    tp_front, tp = tensor_parallel(at, place, sent)
    device = (front + back) + again + tp + n * (2 + routed) * ep + n * (3 + whole) * cp
    host, counted = host_seconds(at, n)
    waits = (device**CORNER + host**CORNER) ** (1 / CORNER) - device + counted
    return Micro(
        compute=front + back,
        recompute=again,
        tp=tp,
        cp=n * (3 + whole) * cp,
        ep=n * (2 + routed) * ep,
        host=waits,
        front=front + tp_front + n * (ep + cp),
        weight=weight,
    )


def tensor_parallel(at: Columns, place: Place, sent: Exchanges) -> tuple[np.ndarray, np.ndarray]:
    """Exposed seconds of a micro-batch: of its forward, and of all of it; overlap.tp of them are hidden."""
    front, whole = np.zeros(len(at.table)), np.zeros(len(at.table))
    for one in sent.volumes.tensor_parallel(place):
        if np.any(one.calls):
            taken = one.calls * sent.links(one)
            whole = whole + taken
            front = front + taken if one.during == "forward" else front
    exposed = (1 - at.c["overlap.tp"] * at.trainer("overlap_tp")) / np.maximum(at.table.accumulation, 1.0)
    return exposed * front, exposed * whole


def _launches(at: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Launches of an average block that no graph holds, over a dense block's: all, and an expert layer's.

    Routing and dispatch take more the older the trainer is; products one by one three launches an expert and
    pass.
    """
    c, sparse = at.c, at.work("sparse")
    plain = at.trainer("launches_mixer") + (1 - sparse) * at.trainer("launches_mlp")
    if not sparse.any():
        return plain, sparse
    experts = c["host.experts"] * immature(at.trainer("year"), at.trainer("kernels"), c)
    experts = experts * np.where(at.trainer("permutes_fused") > 0, 1.0, UNFUSED_LAUNCHES)
    experts = experts + at.trainer("one_by_one") * at.work("local_experts") * AN_EXPERT
    experts = sparse * experts * at.trainer("launches_experts")
    return np.asarray(plain + experts), np.asarray(experts)


def host_seconds(at: Columns, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that the host needs to launch a micro-batch of so many blocks, and those that never overlap."""
    c, t = at.c, at.table
    kind = at.trainer("host").astype(int)
    one = c["host.launch"] * c.row("host", HOSTS)[kind]
    one = one * np.where(t.tp > 1, c["host.tp_factor"], 1.0) * (1 + 0.33 * at.rerun)
    launched, experts = _launches(at)
    counted = one * experts * at.trainer("counts_tokens") * c["moe.sync"] * blocks
    one = one * launched + c["host.launch"] * c["host.xla"] * np.maximum(1 - launched, 0.0)
    # nanotron's runs on several nodes wait for the host with tp and pp together, more with every tp rank
    node = np.maximum(at.chip("node"), 1.0)
    wide = (kind == HOSTS.index("nanotron")) & (t.pp > 1) & (t.tp > 1) & (t.devices > node)
    if wide.any():
        slower = t.tp ** c["host.wide_tp"] * np.maximum(t.tp / node, 1.0) ** c["host.wide_cross"]
        one = np.where(wide, c["host.launch"] * c["host.nanotron"] * slower, one)
    return np.asarray(one * (blocks + 1)), np.asarray(counted)
