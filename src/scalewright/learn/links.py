"""Collectives by alpha and beta: delays a hop, and bytes over rates, as textbooks write them.

    ring            (n-1) alpha + (n-1)/n · B / rate       gather, scatter; an all-reduce is both
    tree            2 log2 n (alpha + B / rate)            reduce and broadcast, not pipelined
    doubling        log2 n alpha + ...                     recursive doubling
    torus axis      B / two-way rate                       closed: both directions at once, (n-1)/n left out

Thakur et al. 2005; Rabenseifner 2004; scaling book, part 3. B is the whole tensor in bytes, rates are bytes/s
one way unless said, delays are seconds. Rings are those that plans are priced with
(`plan/cost/collectives.py`), on one level of links at their printed rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2, prod

import numpy as np

from scalewright.learn.traffic import ring_volume


def ring_seconds(
    kind: str, size: float, ranks: int, bytes_per_s: float = inf, hop_seconds: float = 0.0
) -> float:
    """Seconds of a ring's all_gather, reduce_scatter or all_reduce of a tensor of `size` bytes.

    With an endless rate it is the delays alone, n - 1 hops each way.
    """
    unit = np.ones(1)
    from scalewright.plan.cost import collectives

    links = collectives.Wires(
        domain=ranks * unit, fast=bytes_per_s * unit, fast_delay=hop_seconds * unit,
        slow=bytes_per_s * unit, slow_delay=hop_seconds * unit, start=0.0, hop=hop_seconds,
    )  # fmt: skip
    price = {"all_reduce": collectives.all_reduce}.get(kind, collectives.gather)
    return float(price(size * unit, ranks * unit, unit, links)[0])


def bus_bandwidth(kind: str, algorithm_bandwidth: float, ranks: int) -> float:
    """The rate at which links were used, from tensor bytes / seconds (nccl-tests, PERFORMANCE.md)."""
    return ring_volume(kind, algorithm_bandwidth, ranks)


def torus_gather_seconds(size: float, ways: int, bytes_per_s: float, wraps: bool = True) -> float:
    """Seconds of an all-gather to `size` bytes over one axis of a torus; `bytes_per_s` of one link, one way.

    Closed, pieces go both ways round, and the book leaves out (n-1)/n. Open, the end's piece has all n - 1
    hops before it, one way.
    """
    if wraps:
        return size / (2 * bytes_per_s)
    return ring_seconds("all_gather", size, ways, bytes_per_s)


def torus_delay_seconds(ways: int, hop_seconds: float, wraps: bool = True) -> float:
    """The delay of a gather of next to nothing: hops to the farthest rank of the axis."""
    return ways / 2 * hop_seconds if wraps else ring_delay_seconds(ways, hop_seconds)


def torus_all_to_all_seconds(size: float, axes: Sequence[int], two_way_bytes_per_s: float) -> float:
    """Seconds of an all-to-all of `size` bytes in all on a closed torus: B longest / (4 N · two-way rate)."""
    return size * max(axes) / (4 * prod(axes) * two_way_bytes_per_s)


def latency_bound_bytes(bytes_per_s: float, hop_seconds: float, ways: int = 1) -> float:
    """Bytes under which a ring of `ways` waits more for delays than for links (scaling book, parts 3, 7)."""
    return bytes_per_s * hop_seconds * ways


@dataclass(frozen=True)
class TwoLevels:
    """Bytes of the whole tensor per second in each phase of a gather in two levels."""

    inside: float
    across: float

    @property
    def inside_binds(self) -> bool:
        """Whether the phase inside the nodes is the slower one."""
        return self.inside < self.across


def two_level_gather(
    devices_per_node: int, device_bytes_per_s: float, nodes: int, node_bytes_per_s: float
) -> TwoLevels:
    """An all-gather inside nodes and across: each level has n / (n-1) of its rate (scaling book, part 12).

    `device_bytes_per_s`: one device's rate inside its node; `node_bytes_per_s`: a whole node's to the others.
    """
    inside = 1 / ring_seconds("all_gather", 1.0, devices_per_node, device_bytes_per_s)
    return TwoLevels(inside, 1 / ring_seconds("all_gather", 1.0, nodes, node_bytes_per_s))


def tree_all_reduce_seconds(size: float, ranks: int, hop_seconds: float, bytes_per_s: float) -> float:
    """Seconds of a binomial tree's reduce and broadcast: 2 log2 n (alpha + B / rate), nothing pipelined."""
    return 2 * log2(ranks) * (hop_seconds + size / bytes_per_s)


def ring_delay_seconds(ranks: int, hop_seconds: float) -> float:
    """The delays of a ring's gather: n - 1 hops."""
    return ring_seconds("all_gather", 1.0, ranks, hop_seconds=hop_seconds)


def doubling_delay_seconds(ranks: int, hop_seconds: float) -> float:
    """The delays of recursive doubling: log2 n exchanges."""
    return log2(ranks) * hop_seconds


def zero3_extra_gathers(layers: int) -> int:
    """All-gathers of a step that ZeRO-3 adds to ZeRO-2's one: 2 L - 1, forward and backward of each layer.

    The last layer's is still there when its backward begins (Hugging Face's playbook).
    """
    return 2 * layers - 1
