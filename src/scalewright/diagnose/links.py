"""Collectives far slower than the link under them: a wrong transport, a bad cable, a detour.

    expected = delay + bytes x factor / link        measured = transfer, without waiting for the last rank

A rule for groups whose link is the device's own (bandwidths.py tells which). Small collectives are delay, and
real ones reach a third to four fifths of a link: only what takes `TIMES` as long as the link allows is named.
"""

from __future__ import annotations

from scalewright.diagnose.bandwidths import Bandwidth
from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.verdict import Verdict

DELAY_S = 40e-6  # of a collective's start and its hops within a node; generous
TIMES = 5.0
REACHED = (0.3, 0.6, 0.8)  # of the link, once mended: p10, p50, p90. A judgement by nccl-tests' usual results


def slow_links(ranks: Ranks) -> Verdict | None:
    """Groups whose large collectives take `TIMES` what their link allows."""
    slow = [some for some in ranks.bandwidths if _seconds(some, 1.0) * TIMES < _measured(some)]
    if not slow or not ranks.replays:
        return None
    low, middle, most = (_gain(ranks, slow, part) for part in REACHED)
    evidence = [
        f"{some.kind} of {some.largest / 1e6:,.1f} MB over {some.group.partition(' [')[0]}: "
        f"{some.bus / 1e9:,.2f} GB/s of a link's {_link(some) / 1e9:,.0f} GB/s"
        for some in slow
    ]
    return Verdict(
        "link",
        evidence,
        "see which transport NCCL chose (NCCL_DEBUG=INFO, then diagnose that log), nvidia-smi topo -m and "
        "nvlink -s, and measure the link alone: scalewright bench collectives",
        low, middle, most, 0.7,
    )  # fmt: skip


def _gain(ranks: Ranks, slow: list[Bandwidth], reached: float) -> float:
    """Percent of the window saved where the groups reach a part of their link."""
    factors = {some.group: _seconds(some, reached) / _measured(some) for some in slow}
    return max(ranks.gain(Change(groups=factors)), 0.0)


def _link(some: Bandwidth) -> float:
    return some.link or float("inf")


def _seconds(some: Bandwidth, reached: float) -> float:
    """What the largest collective should take at a part of the link; infinite where no link is known."""
    if some.link is None or some.waits:
        return float("inf")
    factor = some.bus / some.algorithm
    return DELAY_S + some.largest * factor / (reached * some.link)


def _measured(some: Bandwidth) -> float:
    return some.largest / some.algorithm
