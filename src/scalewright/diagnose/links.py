"""Collectives far slower than the link under them: a wrong transport, a bad cable, a detour.

    expected = delay + bytes x factor / link        measured = transfer, without waiting for the last rank

A rule for groups whose link is known (bandwidths.py). Small collectives are delay, and real ones reach a third to four
fifths of a data sheet's link: only what takes `TIMES` as long as the link allows is named. Of a link that a benchmark
measured they reach all, but for others that share it.
"""

from __future__ import annotations

from scalewright.diagnose.bandwidths import Bandwidth, Wire
from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.verdict import Gain, Verdict

DELAY_S = 40e-6  # of a collective's start and its hops within a node; generous
# Of a data sheet's link (False) and of one that was measured (True): times what it allows, to be named; and what is
# reached of it, once mended, as p10, p50, p90: a judgement by nccl-tests' usual results.
TIMES = {False: 5.0, True: 2.5}
REACHED = {False: (0.3, 0.6, 0.8), True: (0.6, 1.0, 1.1)}


def slow_links(ranks: Ranks) -> Verdict | None:
    """Groups whose large collectives take `TIMES` what their link allows."""
    slow = [
        (some, some.wire)
        for some in ranks.bandwidths
        if some.wire and not some.waits and _seconds(some, some.wire, 1.0) * TIMES[some.wire.measured] < _measured(some)
    ]
    if not slow or not ranks.replays:
        return None
    gains = []
    for place in range(3):  # p10, p50, p90
        factors = {
            some.group: _seconds(some, wire, REACHED[wire.measured][place]) / _measured(some) for some, wire in slow
        }
        gains.append(max(ranks.gain(Change(groups=factors)), 0.0))
    evidence = [
        f"{some.kind} of {some.largest / 1e6:,.1f} MB over {some.group.partition(' [')[0]}: "
        f"{_rate(some.bus)} of a link's {_rate(wire.bytes_per_s)}"
        for some, wire in slow
    ]
    return Verdict("link", evidence, FIX if ranks.on_gpu else FIX_CPU, 0.7, Gain(*gains))


FIX = (
    "see which transport NCCL chose (NCCL_DEBUG=INFO, then diagnose that log), nvidia-smi topo -m and "
    "nvlink -s, and measure the link alone: scalewright bench collectives"
)
FIX_CPU = (
    "see which interface Gloo takes (GLOO_SOCKET_IFNAME) and who else sends over it, and measure the link "
    "alone: scalewright bench pairs"
)


def _rate(bytes_per_s: float) -> str:
    """As a link's rate is usually given."""
    if bytes_per_s < 1e9:
        return f"{bytes_per_s / 1e6:,.1f} MB/s"
    return f"{bytes_per_s / 1e9:,.2f} GB/s" if bytes_per_s < 1e11 else f"{bytes_per_s / 1e9:,.0f} GB/s"


def _seconds(some: Bandwidth, wire: Wire, reached: float) -> float:
    """What the largest collective should take at a part of the link."""
    from scalewright.spec.groups import COLLECTIVES

    delay = COLLECTIVES[some.kind].hops(some.ranks) * wire.hop_s if wire.measured else DELAY_S
    return delay + some.largest * (some.bus / some.algorithm) / (reached * wire.bytes_per_s)


def _measured(some: Bandwidth) -> float:
    return some.largest / some.algorithm
