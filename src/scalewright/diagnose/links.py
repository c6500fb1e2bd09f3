"""Collectives far slower than the link under them: a wrong transport, a bad cable, a detour.

    expected = delay + bytes x factor / link        measured = transfer, without waiting for the last rank

A rule for groups whose link is known (bandwidths.py). Small collectives are delay, and real ones reach a
third to four fifths of a data sheet's link: only what takes `TIMES` as long as the link allows is named. Of a
link that a benchmark measured they reach all, but for others that share it.
"""

from __future__ import annotations

from scalewright.diagnose.bandwidths import Bandwidth
from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.groups import COLLECTIVES

DELAY_S = 40e-6  # of a collective's start and its hops within a node; generous
TIMES, TIMES_MEASURED = 5.0, 2.5  # of a data sheet's link, and of one that was measured
REACHED = (0.3, 0.6, 0.8)  # of the link, once mended: p10, p50, p90. A judgement by nccl-tests' usual results
REACHED_MEASURED = (0.6, 1.0, 1.1)


def slow_links(ranks: Ranks) -> Verdict | None:
    """Groups whose large collectives take `TIMES` what their link allows."""
    slow = [
        bandwidth
        for bandwidth in ranks.bandwidths
        if _seconds(bandwidth, 1.0) * _times(bandwidth) < _measured(bandwidth)
    ]
    if not slow or not ranks.replays:
        return None
    low, middle, most = (_gain(ranks, slow, place) for place in range(3))
    evidence = [
        f"{bandwidth.kind} of {bandwidth.largest / 1e6:,.1f} MB over {bandwidth.group.partition(' [')[0]}: "
        f"{_rate(bandwidth.bus)} of a link's {_rate(bandwidth.wire.bytes_per_s if bandwidth.wire else 0.0)}"
        for bandwidth in slow
    ]
    return Verdict("link", evidence, FIX if ranks.on_gpu else FIX_CPU, 0.7, Gain(low, middle, most))


FIX = (
    "see which transport NCCL chose (NCCL_DEBUG=INFO, then diagnose that log), nvidia-smi topo -m and "
    "nvlink -s, and measure the link alone: scalewright bench collectives"
)
FIX_CPU = (
    "see which interface Gloo takes (GLOO_SOCKET_IFNAME) and who else sends over it, and measure the link "
    "alone: scalewright bench pairs"
)


def _gain(ranks: Ranks, slow: list[Bandwidth], place: int) -> float:
    """Percent of the window saved where the groups reach a part of their link: p10, p50 or p90."""
    factors: dict[str, float] = {}
    for bandwidth in slow:
        reached = (REACHED_MEASURED if bandwidth.wire and bandwidth.wire.measured else REACHED)[place]
        factors[bandwidth.group] = _seconds(bandwidth, reached) / _measured(bandwidth)
    return max(ranks.gain(Change(groups=factors)), 0.0)


def _rate(bytes_per_s: float) -> str:
    """As a link's rate is usually given."""
    if bytes_per_s < 1e9:
        return f"{bytes_per_s / 1e6:,.1f} MB/s"
    return f"{bytes_per_s / 1e9:,.2f} GB/s" if bytes_per_s < 1e11 else f"{bytes_per_s / 1e9:,.0f} GB/s"


def _times(some: Bandwidth) -> float:
    return TIMES_MEASURED if some.wire and some.wire.measured else TIMES


def _seconds(some: Bandwidth, reached: float) -> float:
    """What the largest collective should take at a part of the link; infinite where no link is known."""
    if some.wire is None or some.waits:
        return float("inf")
    factor = some.bus / some.algorithm
    hops = COLLECTIVES[some.kind].hops(some.ranks)
    delay = hops * some.wire.hop_s if some.wire.measured else DELAY_S
    return delay + some.largest * factor / (reached * some.wire.bytes_per_s)


def _measured(some: Bandwidth) -> float:
    return some.largest / some.algorithm
