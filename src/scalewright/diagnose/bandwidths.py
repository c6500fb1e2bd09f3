"""How fast collectives were: algorithm and bus bandwidth by group and kind, beside the device's link.

    bytes     numbers of the buffer that nccl-tests counts (spec/collectives.py) x bytes of the dtype
    seconds   matched over ranks: the transfer, without waiting for the last rank; else a rank's whole kernel
    bus       bytes / seconds x factor; of `LARGE` and more of the group's largest, since small ones are delay

Metadata is PyTorch's (2.3 and later), Gloo's that of our own recorders: what has none isn't counted. The link
is that of a cluster that is given: of the innermost level that joins all ranks of the group. Else it is the
device's between GPUs, and only where the group can lie within its domain: at most so many ranks, consecutive,
in one block of that size.

Collectives far slower than the link under them: a wrong transport, a bad cable, a detour.

    expected = delay + bytes x factor / link        measured = transfer, without waiting for the last rank

A rule for groups whose link is known (bandwidths.py). Small collectives are delay, and real ones reach a
third to four fifths of a data sheet's link: only what takes `TIMES` as long as the link allows is named. Of a
link that a benchmark measured they reach all, but for others that share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.diagnose.collectives import Matched, group_of
from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.traces.trace import KERNEL, Collective, Trace
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.collectives import COLLECTIVES
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.driver_names import match_gpu

LARGE = 0.5  # of the largest
BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1,
    "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
# What names contain, in this order -> the collective, and the buffer that counts.
KINDS = (
    ("reduce_scatter", "reduce_scatter", "in"), ("reducescatter", "reduce_scatter", "in"),
    ("allreduce", "all_reduce", "in"), ("all_reduce", "all_reduce", "in"),
    ("allgather", "all_gather", "out"), ("all_gather", "all_gather", "out"),
    ("all_to_all", "all_to_all", "in"), ("alltoall", "all_to_all", "in"),
    ("broadcast", "broadcast", "in"), ("send", "send_recv", "in"), ("recv", "send_recv", "out"),
)  # fmt: skip
DELAY_S = 40e-6  # of a collective's start and its hops within a node; generous
TIMES, TIMES_MEASURED = 5.0, 2.5  # of a data sheet's link, and of one that was measured
REACHED = (0.3, 0.6, 0.8)  # of the link, once mended: p10, p50, p90. A judgement by nccl-tests' usual results
REACHED_MEASURED = (0.6, 1.0, 1.1)


@dataclass(frozen=True)
class Wire:
    """The link under a group: bytes/s one way, seconds of a hop, and whether they were measured there."""

    bytes_per_s: float
    hop_s: float = 0.0
    measured: bool = False


@dataclass(frozen=True)
class Bandwidth:
    """The collectives of one kind in one group; medians over its large ones, bytes/s."""

    group: str
    kind: str
    calls: int
    largest: int  # bytes
    algorithm: float
    bus: float
    waits: bool  # whether waiting for other ranks is in it
    imbalance: float | None  # largest over mean of the ranks' bytes, median over calls
    ranks: int
    wire: Wire | None

    def dump(self) -> dict[str, Any]:
        """The keys of `communication.bandwidths` in `diagnose --json`."""
        return {
            "group": self.group, "kind": self.kind, "calls": self.calls, "largest_bytes": self.largest,
            "algbw_bytes_per_s": self.algorithm, "busbw_bytes_per_s": self.bus, "with_waiting": self.waits,
            "imbalance": self.imbalance, "link_bytes_per_s": self.wire.bytes_per_s if self.wire else None,
        }  # fmt: skip


@dataclass(frozen=True)
class _Call:
    kind: str
    ranks: int
    sizes: list[int]  # bytes on each rank
    seconds: float
    about: Collective


def bandwidths(
    traces: Sequence[Trace], matched: Sequence[Matched], cluster: ClusterSpec | None = None
) -> list[Bandwidth]:
    """One for each group and kind, those that sent the most first; groups that aren't matched by one rank."""
    done = {group.group for group in matched}
    calls: dict[tuple[str, str], list[_Call]] = {}
    for group in matched:
        for call in _matched_calls(traces, group):
            calls.setdefault((group.group, call.kind), []).append(call)
    for name, call in _single_calls(traces[0]):
        if name not in done:
            calls.setdefault((name, call.kind), []).append(call)
    result = [
        _bandwidth(name, some, name not in done, _wire(traces[0], some[0].about, cluster))
        for (name, _), some in calls.items()
    ]
    return sorted(result, key=lambda some: -some.calls * some.largest)


def _bandwidth(group: str, calls: list[_Call], waits: bool, wire: Wire | None) -> Bandwidth:
    sizes = np.array([max(call.sizes) for call in calls], dtype=float)
    large = sizes >= LARGE * sizes.max()
    rates = sizes[large] / np.array([call.seconds for call in calls])[large]
    factor = COLLECTIVES[calls[0].kind].factor(calls[0].ranks)
    several = [max(call.sizes) * len(call.sizes) / sum(call.sizes) for call in calls if len(call.sizes) > 1]
    algorithm = float(np.median(rates))
    return Bandwidth(
        group, calls[0].kind, len(calls), int(sizes.max()), algorithm, algorithm * factor, waits,
        float(np.median(several)) if several else None, calls[0].ranks, wire,
    )  # fmt: skip


def _matched_calls(traces: Sequence[Trace], group: Matched) -> Iterator[_Call]:
    for number, transfer in enumerate(group.transfer.tolist()):
        about = [traces[index].collectives.get(int(group.row[number, column]))
                 for column, index in enumerate(group.ranks)]  # fmt: skip
        known = [collective for collective in about if collective is not None]
        if len(known) == len(about) and transfer > 0 and (call := _call(known, transfer / 1e9)):
            yield call


def _single_calls(trace: Trace) -> Iterator[tuple[str, _Call]]:
    streams: dict[int, str] = {}
    kernels = [row for row in trace.collectives if trace.category[row] == KERNEL]
    for row in sorted(kernels, key=lambda row: int(trace.start[row])):
        seconds = int(trace.end[row] - trace.start[row]) / 1e9
        if seconds > 0 and (call := _call([trace.collectives[row]], seconds)):
            yield group_of(trace, row, streams), call


def _call(about: Sequence[Collective], seconds: float) -> _Call | None:
    """A collective of `about` on each rank; None where its kind, size or ranks aren't known."""
    first = about[0]
    kind, buffer = _kind(first.name)
    if not kind or first.group_size < 2:
        return None
    sizes = [_bytes(collective, buffer) for collective in about]
    return _Call(kind, first.group_size, sizes, seconds, first) if min(sizes) > 0 else None


def _kind(name: str) -> tuple[str, str]:
    text = name.lower()
    return next(((kind, buffer) for word, kind, buffer in KINDS if word in text), ("", ""))


def _bytes(about: Collective, buffer: str) -> int:
    elements = about.elements_in if buffer == "in" else about.elements_out
    return max(elements, 0) * BYTES.get(about.dtype.lower(), 0)


def _wire(trace: Trace, about: Collective, cluster: ClusterSpec | None) -> Wire | None:
    """The link where the group's ranks may all be on it."""
    ranks = [int(number) for number in re.findall(r"\d+", about.ranks)] if "..." not in about.ranks else []
    if not ranks or len(ranks) != about.group_size:
        return None
    if cluster is not None:
        _, *levels = cluster.effective_levels()
        level = next((level for level in levels if _within(ranks, level.size)), None)
        return Wire(level.bytes_per_s, level.latency_s, level.source == "measured") if level else None
    devices = trace.about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    device = match_gpu(str(first.get("name"))) if isinstance(first, dict) else None
    if device is None or device.link is None:
        return None
    near = ranks == list(range(ranks[0], ranks[0] + len(ranks)))
    return (
        Wire(device.link.bytes_per_s) if near and _within(ranks, device.link.domain or len(ranks)) else None
    )


def _within(ranks: Sequence[int], size: int | None) -> bool:
    """Whether all ranks are in one block of so many; in any where that is None."""
    return size is None or min(ranks) // size == max(ranks) // size


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
