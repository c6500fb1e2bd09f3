"""Seconds of a transfer over levels of links with a delay and a rate: which ranks take part (`GROUPS`), and how.

    group of g ranks, every s-th rank          inside a domain: k = min(g, domain / s) of them; g / k domains

    gather, scatter   ring: (g-1)/g · B over the slower of the fast links and k shares of the fabric, g-1 hops
                      (Patarasuk and Yuan 2009)
    all-reduce        both, one after the other; by a double binary tree, whose delay is 2 log2 hops, where
                      that is less (Sanders et al. 2009; NCCL 2.4)
    all-to-all        the part that stays inside, and the part that leaves over one share of the fabric, of which
                      it reaches less than a ring by the kind of network (`exchange` in constants.yaml)

B: bytes of the whole tensor (gather's output, scatter's input). k ranks of a domain drive k NICs, so that a group that
spans nodes has the sum of their rates, as NCCL's rings do: a flat ring over one NIC is twice to eight times too slow.
What leaves a pod of an oversubscribed fabric shares its uplinks with whatever else leaves it at that time (`Pods`).
In-network reduction (SHARP) and other congestion are left out. A torus whose axes are too short to close, as small
slices of a TPU pod, sends one way round: half the rate (scaling book, part 3). A group that doesn't fill its slice is
taken as laid over all axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.table import Table
from scalewright.spec.hardware.topology import FABRICS
from scalewright.spec.volumes import Transfer

LONGEST = 127  # ranks of a ring whose delays add up; larger groups are cut into levels


@dataclass(frozen=True)
class Wires:
    """The links under a table's rows; a number a row."""

    domain: np.ndarray
    fast: np.ndarray  # bytes/s one way that a device reaches inside its domain
    fast_delay: np.ndarray
    slow: np.ndarray  # bytes/s one way of a device's share of the fabric
    slow_delay: np.ndarray
    start: float  # s
    hop: float  # s
    torus: Torus | None = None
    exchange: np.ndarray | float = 1.0  # of `slow`, what an all-to-all reaches
    pods: Pods | None = None


@dataclass(frozen=True)
class Torus:
    """The torus under a table's rows; a number a row, `axes` 0 where there is none."""

    axes: np.ndarray
    wraps_at: np.ndarray  # length from which an axis closes
    slice: np.ndarray  # devices of the job that share one torus

    def share(self, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """The share of a device's rate that a group has: half where it fills a slice too short to close."""
        side = np.rint(self.slice ** (1 / np.maximum(self.axes, 1.0)))
        return np.where((self.axes > 0) & (group * stride >= self.slice) & (side < self.wraps_at), 0.5, 1.0)


@dataclass(frozen=True)
class Pods:
    """Pods of an oversubscribed fabric; a number a row, `devices` infinite where it is none."""

    devices: np.ndarray
    oversubscription: np.ndarray

    def share(self, span: np.ndarray, leaving: np.ndarray) -> np.ndarray:
        """Of a device's rate, what each of `leaving` devices of a pod has that send out of it at once.

        `span`: devices from the first to the last of those that take part; within a pod they have all of it.
        """
        flows = np.minimum(leaving, self.devices) * self.oversubscription
        return np.where(span > self.devices, np.minimum(self.devices / flows, 1.0), 1.0)


def wires(at: Columns) -> Wires:
    """The links of every row, at the rates that collectives reach on them."""
    chip, c = at.chip, at.c
    torus = None
    if chip.torus_axes.any():
        torus = Torus(chip.torus_axes, chip.wraps_at, np.minimum(at.table.devices, chip.domain))
    return Wires(
        domain=chip.domain,
        fast=chip.link_rate * c["link.fast"] * np.where(chip.staged > 0, c["link.staged"], 1.0),
        fast_delay=chip.link_delay * c["link.delay"],
        slow=chip.fabric_rate * c["link.fabric"] * c.row("fabric", FABRICS)[chip.fabric],
        slow_delay=chip.fabric_delay,
        start=c["link.start"],
        hop=c["link.hop"],
        torus=torus,
        exchange=c.row("exchange", FABRICS)[chip.fabric],
        pods=Pods(chip.pod, chip.oversubscription) if (chip.oversubscription > 1).any() else None,
    )


def inside(group: np.ndarray, stride: np.ndarray, links: Wires) -> np.ndarray:
    """Ranks of a group that share a domain."""
    return np.asarray(np.clip(np.floor(links.domain / stride), 1, group))


def inside_rate(group: np.ndarray, stride: np.ndarray, links: Wires) -> np.ndarray:
    """Bytes/s one way that a rank of a group has inside its domain."""
    if links.torus is None:
        return links.fast
    return np.asarray(links.fast * links.torus.share(group, stride))


def gather(size: np.ndarray, group: np.ndarray, stride: np.ndarray, links: Wires) -> np.ndarray:
    """Seconds of an all-gather that makes `size` bytes on every rank, or of a reduce-scatter of as many."""
    k, fast = inside(group, stride, links), inside_rate(group, stride, links)
    slow = links.slow * k
    if links.pods is not None:  # of each group in a pod k ranks send out of it
        slow = slow * links.pods.share(group * stride, stride * k)
    rate = np.where(group / k > 1, np.minimum(np.where(k > 1, fast, np.inf), slow), fast)
    seconds = size * ((group - 1) / group) / rate + (links.start + _hops(group, k, links))
    return np.where((group > 1) & (size > 0), seconds, 0.0)


def _hops(group: np.ndarray, k: np.ndarray, links: Wires) -> np.ndarray:
    """Seconds of delay on a ring, k of whose ranks share a domain."""
    slow = np.minimum(group - 1, LONGEST) * links.hop
    return np.asarray(np.where(group / k > 1, slow, (k - 1) * links.fast_delay))


def all_reduce(size: np.ndarray, group: np.ndarray, stride: np.ndarray, links: Wires) -> np.ndarray:
    """Seconds of an all-reduce of `size` bytes: a scatter and a gather, with a tree's delay where less."""
    k = inside(group, stride, links)
    ring = 2 * gather(size, group, stride, links) - links.start
    tree = np.log2(np.maximum(group / k, 1)) * links.slow_delay + (k - 1) * links.fast_delay
    return np.where((group > 1) & (size > 0), ring - 2 * np.maximum(_hops(group, k, links) - tree, 0.0), 0.0)


def all_to_all(
    size: np.ndarray, group: np.ndarray, stride: np.ndarray, links: Wires, leaves: np.ndarray | float = 1.0
) -> np.ndarray:
    """Seconds until every rank has sent `size` bytes, spread evenly over the group.

    `leaves`: the share of what is meant for other domains that has to go there, copies being made on arrival.
    """
    k = inside(group, stride, links)
    near, far = size * (k - 1) / group, leaves * size * (group - k) / group
    delay = np.where(group > k, links.slow_delay, links.fast_delay)
    seconds = np.maximum(near / inside_rate(group, stride, links), far / (links.slow * links.exchange))
    if links.pods is not None:  # all devices of a pod send at once
        beyond = 1 - np.clip(links.pods.devices / (stride * group), None, 1.0)
        uplinks = links.slow * links.exchange / links.pods.oversubscription
        seconds = np.maximum(seconds, leaves * size * beyond / uplinks)
    return np.where(group > 1, seconds + links.start + delay, 0.0)


def send(size: np.ndarray, stride: np.ndarray, span: np.ndarray, links: Wires) -> np.ndarray:
    """Seconds of one message to a rank `stride` away, in a row of `span` devices."""
    near = (span <= links.domain) | (stride < links.domain / 2)
    slow = links.slow if links.pods is None else links.slow * links.pods.share(span, stride)
    return size / np.where(near, links.fast, slow) + np.where(near, links.fast_delay, links.slow_delay)


class Links:
    """The links under a table's rows; of groups that are given, the collectives over them."""

    def __init__(self, at: Columns) -> None:
        self.at, self.links = at, wires(at)
        self.send, self.gather = partial(send, links=self.links), partial(gather, links=self.links)
        self.all_to_all = partial(all_to_all, links=self.links)
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
        tree = all_reduce(size, group, stride, self.links)
        if transfer.axis not in ("gradient", "expert"):
            return tree
        # others' constants were fitted with rings, there and back
        return np.where(self.at.own, tree, 2 * self.gather(size, group, stride))


Group = tuple[np.ndarray, np.ndarray]  # how many ranks, and how far the next one is
# By axis of transfers, from a table's columns and the ranks that sum a dense gradient
GROUPS: dict[str, Callable[[Table, np.ndarray], Group]] = {
    "fsdp": lambda t, _: (t.dp * t.cp / t.dp_replicate, t.tp),  # a replica's data-parallel ranks
    "gradient": lambda t, summing: (summing, t.tp),  # all data-parallel ranks
    "expert": lambda t, summing: (_sharing(summing, t), t.ep * t.etp),  # those that share an expert
    "efsdp": lambda t, _: (_sharing(t.dp * t.cp / t.dp_replicate, t), t.ep * t.etp),  # of these, a replica's
    "ep": lambda t, _: (t.ep, t.etp),  # those among which experts are
    "etp": lambda t, _: (t.etp, np.ones(len(t))),  # those that share an expert by its width
    "cp": lambda t, _: (t.cp, t.tp),  # those that share sequences
    "dp_replicate": lambda t, _: (t.dp_replicate, t.tp * (t.dp * t.cp) / t.dp_replicate),  # replicas
    "islands": lambda t, _: (t.dp_replicate, t.tp * (t.dp * t.cp) / t.dp_replicate),
    "tp": lambda t, _: (t.tp, np.ones(len(t))),
    "kv": lambda t, _: (t.tp, np.ones(len(t))),
    "tie": lambda t, _: (np.minimum(t.pp, 2.0), np.maximum(t.pp - 1, 1) * t.devices / t.pp),  # a pipeline's two ends
    "world": lambda t, _: (t.devices, np.ones(len(t))),
}


def _sharing(ranks: np.ndarray, t: Table) -> np.ndarray:
    return np.asarray(np.maximum(ranks * t.tp / (t.ep * t.etp), 1.0))


def groups(at: Columns, axis: str) -> Group:
    """The ranks of an axis of transfers; a sender and a receiver (pp) are priced by `send`."""
    return GROUPS[axis](at.table, at.summing)


def message_bytes(at: Columns) -> np.ndarray:
    """Bytes of one activation that a rank sends: its part, or all of it where tp ranks repeat each other."""
    t = at.table
    whole = (at.trainer.whole_p2p > 0) | (at.own & (t.sp <= 0))
    return np.floor(at.work.stream / np.where(whole, 1.0, t.tp))
