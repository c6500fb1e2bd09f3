"""How fast collectives were: algorithm and bus bandwidth by group and kind, beside the device's link.

    bytes     numbers of the buffer that nccl-tests counts (spec/groups.py) x bytes of the dtype
    seconds   matched over ranks: the transfer, without waiting for the last rank; else a rank's whole kernel
    bus       bytes / seconds x factor; of `LARGE` and more of the group's largest, since small ones are delay

Metadata is PyTorch's (2.3 and later), Gloo's that of our own recorders: what has none isn't counted. The link is that
of a cluster that is given: of the innermost level that joins all ranks of the group. Else it is the device's between
GPUs, and only where the group can lie within its domain: at most so many ranks, consecutive, in one block of that size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scalewright.diagnose.collectives import Matched, group_of
from scalewright.diagnose.traces.trace import KERNEL, Collective, Trace

if TYPE_CHECKING:
    from scalewright.spec.hardware.cluster import ClusterSpec

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

    def dump(self) -> dict[str, object]:
        """The keys of `communication.bandwidths` in `diagnose --json`."""
        return {
            "group": self.group, "kind": self.kind, "calls": self.calls, "largest_bytes": self.largest,
            "algbw_bytes_per_s": self.algorithm, "busbw_bytes_per_s": self.bus, "with_waiting": self.waits,
            "imbalance": self.imbalance, "link_bytes_per_s": self.wire.bytes_per_s if self.wire else None,
        }  # fmt: skip


@dataclass(frozen=True)
class _Call:
    kind: str
    sizes: list[int]  # bytes on each rank
    seconds: float
    about: Collective


def bandwidths(
    traces: Sequence[Trace], matched: Sequence[Matched], cluster: ClusterSpec | None = None
) -> list[Bandwidth]:
    """One for each group and kind, those that sent the most first; groups that aren't matched by one rank."""
    done = {group.group for group in matched}
    calls: dict[tuple[str, str], list[_Call]] = defaultdict(list)
    for group in matched:
        for call in _matched_calls(traces, group):
            calls[group.group, call.kind].append(call)
    for name, call in _single_calls(traces[0]):
        if name not in done:
            calls[name, call.kind].append(call)
    result = [
        _bandwidth(name, some, name not in done, _wire(traces[0], some[0].about, cluster))
        for (name, _), some in calls.items()
    ]
    return sorted(result, key=lambda some: -some.calls * some.largest)


def _bandwidth(group: str, calls: list[_Call], waits: bool, wire: Wire | None) -> Bandwidth:
    from scalewright.spec.groups import COLLECTIVES

    sizes = np.array([max(call.sizes) for call in calls], dtype=float)
    large = sizes >= LARGE * sizes.max()
    rates = sizes[large] / np.array([call.seconds for call in calls])[large]
    kind, ranks = calls[0].kind, calls[0].about.group_size
    several = [max(call.sizes) * len(call.sizes) / sum(call.sizes) for call in calls if len(call.sizes) > 1]
    algorithm = float(np.median(rates))
    return Bandwidth(
        group, kind, len(calls), int(sizes.max()), algorithm, algorithm * COLLECTIVES[kind].factor(ranks), waits,
        float(np.median(several)) if several else None, ranks, wire,
    )  # fmt: skip


def _matched_calls(traces: Sequence[Trace], group: Matched) -> Iterator[_Call]:
    for number, transfer in enumerate(group.transfer.tolist()):
        rows = zip(group.ranks, group.row[number].tolist(), strict=True)
        known = [traces[index].collectives[row] for index, row in rows if row in traces[index].collectives]
        if len(known) == len(group.ranks) and transfer > 0 and (call := _call(known, transfer / 1e9)):
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
    kind, buffer = next(((kind, buffer) for word, kind, buffer in KINDS if word in first.name.lower()), ("", ""))
    if not kind or first.group_size < 2:
        return None
    sizes = [
        (rank.elements_in if buffer == "in" else rank.elements_out) * BYTES.get(rank.dtype.lower(), 0) for rank in about
    ]
    return _Call(kind, sizes, seconds, first) if min(sizes) > 0 else None


def _wire(trace: Trace, about: Collective, cluster: ClusterSpec | None) -> Wire | None:
    """The link where the group's ranks may all be on it."""
    ranks = [int(number) for number in re.findall(r"\d+", about.ranks)] if "..." not in about.ranks else []
    if not ranks or len(ranks) != about.group_size:
        return None
    if cluster is not None:
        _, *levels = cluster.effective_levels()
        level = next((level for level in levels if _within(ranks, level.size)), None)
        return Wire(level.bytes_per_s, level.latency_s, level.source == "measured") if level else None
    from scalewright.spec.hardware.devices import match_gpu

    device = match_gpu(str(trace.device.get("name")))
    if device is None or device.link is None:
        return None
    near = ranks == list(range(ranks[0], ranks[0] + len(ranks)))
    return Wire(device.link.bytes_per_s) if near and _within(ranks, device.link.domain or len(ranks)) else None


def _within(ranks: Sequence[int], size: int | None) -> bool:
    """Whether all ranks are in one block of so many; in any where that is None."""
    return size is None or min(ranks) // size == max(ranks) // size
