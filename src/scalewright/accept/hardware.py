"""The devices, every pair of them, and the messages of each axis of the layout: measured, then judged; the findings of
all checks of a new cluster, and whether it is accepted.

devices   all multiply and copy at once       slow: below SLOW of the upper median
pairs     each rank with each other           slow ranks, hosts and links: bench/pairs.py
links     an all-reduce along every axis      against the rate of the cluster's level that joins the axis
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from scalewright.bench import collectives, pairs
from scalewright.bench.world import joined
from scalewright.machine.probe import copy_rate, matmul_rate
from scalewright.spec.common.formatting import counted, metric, share
from scalewright.spec.errors import Finding
from scalewright.spec.grid import DENSE
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

SLOW = {"cuda": 0.9, "cpu": 0.7}  # GPUs alike differ by a few percent; CPU processes share their cores
OF_PEAK = 0.5  # of a data sheet's rate that a large product reaches on a sound GPU: 60 to 85% measured
OF_LINK = 0.6  # of a link's rate that a large all-reduce reaches: 75 to 95% measured on sound clusters
AXIS_BYTES = {"cuda": 1 << 28, "cpu": 1 << 22}
PAIR_BYTES = {"cuda": 1 << 26, "cpu": 1 << 20}
SECONDS = 0.5  # of products, and of copies


@dataclass(frozen=True)
class Axis:
    """Groups of `size` ranks, `stride` apart."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True)
class HardwareJob:
    """What to measure; products in `precision`."""

    device: str
    precision: str
    axes: tuple[Axis, ...]
    pairs: pairs.PairsJob


def job_of(layout: Layout, device: str) -> HardwareJob:
    """The measurements that a layout calls for."""
    precision = {"auto": "bf16" if device == "cuda" else "fp32", "fp8": "bf16"}.get(layout.precision, layout.precision)
    axes, stride = [], 1
    for name in reversed(DENSE):
        size = int(getattr(layout, name))
        axes += [Axis(name, size, stride)] if size > 1 else []
        stride *= size
    size = PAIR_BYTES["cuda" if device == "cuda" else "cpu"]
    return HardwareJob(device, precision, tuple(axes), pairs.PairsJob(bytes=size, device=device))


def measured(context: RankContext, job: HardwareJob) -> dict[str, object]:
    """Joins the world and takes every figure; called in each process, the same answer in all."""
    with joined(context, job.device) as place:
        return take(context, job, place)


def take(context: RankContext, job: HardwareJob, place: Any) -> dict[str, object]:
    """`devices[{rank, host, flops_per_s, bytes_per_s}], pairs[], axes[]` of a world that was joined."""
    import torch

    dist, size = torch.distributed, AXIS_BYTES["cuda" if place.type == "cuda" else "cpu"]
    dist.barrier()
    product = matmul_rate(job.precision, str(place), SECONDS)
    dist.barrier()
    copy = copy_rate(str(place), SECONDS)
    mine = {
        "rank": context.rank, "host": socket.gethostname(), "bytes_per_s": copy.median_per_s,
        "flops_per_s": product.median_per_s if product else None,
    }  # fmt: skip
    devices: list[Any] = [None] * context.world
    dist.all_gather_object(devices, mine)
    met = pairs.exchange(torch, context.rank, context.world, place, job.pairs) if context.world > 1 else []
    axes = []
    messages = collectives.CollectivesJob(("all_reduce",), size, size, iterations=10, device=job.device)
    for axis in job.axes:
        of_axis = replace(messages, group=axis.size, stride=axis.stride)
        row = collectives.time_messages(context, of_axis, place)["rows"][0]
        axes.append({"axis": axis.name, "group": axis.size, "stride": axis.stride, **row})
    return {"devices": devices, "pairs": met, "axes": axes}


def devices(rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec, precision: str) -> Finding:
    """Whether all devices are alike, and near their data sheet's rate."""
    kind = "cuda" if cluster.device.kind != "cpu" else "cpu"
    slow = []
    for key, what in (("flops_per_s", "products"), ("bytes_per_s", "copies")):
        rates = {row["rank"]: row[key] for row in rows if row[key]}
        usual = statistics.median_high(rates.values()) if rates else 0.0
        slow += [
            f"rank {row['rank']} on {row['host']}: {share(row[key] / usual)} of the usual rate of {what}"
            for row in rows
            if row[key] and row[key] < SLOW[kind] * usual
        ]
    flops = [row["flops_per_s"] for row in rows if row["flops_per_s"]]
    figures = {"devices": list(rows), "slow": slow}
    if slow:
        how = "look at its clocks, temperature and other work; leave its node out"
        return checked("devices", "problem", "; ".join(slow), how, figures)
    usual = statistics.median(flops) if flops else 0.0
    copies = metric(statistics.median(row["bytes_per_s"] for row in rows), "B/s")
    words = f"{counted(len(rows), 'devices')} alike: {metric(usual, 'FLOP/s')} in {precision}, copies {copies}"
    peak = cluster.device.peak(precision) if cluster.peak_source == "published" and kind != "cpu" else None
    if peak is not None:
        words += f", {share(usual / peak)} of the published peak"
        if usual < OF_PEAK * peak:
            how = "compare clocks and power limit with the data sheet (`nvidia-smi -q -d CLOCK,POWER`)"
            return checked("devices", "warn", words, how, figures)
    return checked("devices", "ok", words, "", figures)


def meetings(rows: Sequence[pairs.PairRow]) -> Finding:
    """Whether every pair exchanges messages alike, and the right ones."""
    if not rows:
        return checked("pairs", "note", "one process has no pair")
    slow, wrong = pairs.slow(rows), sum(row["wrong"] for row in rows)
    lines = pairs.summary(rows)
    figures = {"rows": list(rows), "slow": slow, "summary": lines}
    if wrong:
        ends = ", ".join(sorted({host for row in rows if row["wrong"] for host in row["hosts"]}))
        how = "take these hosts out, and have memory, cables and adapters tested"
        return checked("pairs", "problem", f"{wrong:,} wrong numbers arrived, on {ends}", how, figures)
    if slow:
        how = "check its cables, link width and adapters (`nvidia-smi nvlink -s`, `ibstat`), or leave it out"
        return checked("pairs", "problem", "; ".join(line["words"] for line in slow), how, figures)
    words = "; ".join(
        f"{counted(line['pairs'], 'pairs')} {line['where']}: {metric(line['usual'], 'B/s')} each way "
        f"(slowest {metric(line['slowest'], 'B/s')})"
        for line in lines
    )
    return checked("pairs", "ok", words, "", figures)


def links(rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec) -> Finding:
    """Whether each axis has the bandwidth that its links should give."""
    if not rows:
        return checked("links", "note", "the layout sends nothing")
    lines, low, figures = [], [], []
    for row in rows:
        expected, rate = _expected(row, cluster), row["busbw_bytes_per_s"]
        figures.append({**row, "expected_busbw_bytes_per_s": expected})
        words = f"{row['axis']} {row['group']}: {metric(rate, 'B/s')}"
        if expected:
            words += f", {share(rate / expected)} of its link"
            low += [words] if rate < OF_LINK * expected else []
        lines.append(words)
    if wrong := sum(row["wrong"] for row in rows):
        how = "take the hosts that `pairs` names out, and have memory and adapters tested"
        return checked("links", "problem", f"{wrong:,} wrong numbers in sums", how, {"axes": figures})
    text = "bus bandwidth of an all-reduce: " + "; ".join(lines)
    if low:
        how = "see which transport was taken: NCCL_DEBUG=INFO, and `scalewright diagnose` on that log"
        return checked("links", "problem", "; ".join(low), how, {"axes": figures})
    if not any(row["expected_busbw_bytes_per_s"] for row in figures):
        text += " (no published rate to compare with)"
    return checked("links", "ok", text, "", {"axes": figures})


def _expected(row: Mapping[str, Any], cluster: ClusterSpec) -> float | None:
    """The rate of the link that joins an axis' ranks, bytes/s; None where it is assumed, or a CPU's."""
    if cluster.device.kind == "cpu":
        return None
    span = row["group"] * row["stride"]
    level = next((level for level in cluster.levels if level.size is None or level.size >= span), None)
    if level is None or level.name == "device" or level.source.startswith("assumed"):
        return None
    return level.bytes_per_s


checked = partial(Finding, "acceptance")
STATES = {"ok": "passed", "note": "skipped", "warn": "warned", "problem": "failed"}  # of --json and the page


def timed(check: Finding, start: float) -> Finding:
    """The same with its duration, from `start` of perf_counter on."""
    return replace(check, seconds=round(time.perf_counter() - start, 2))


@dataclass(frozen=True)
class Acceptance:
    """Every check of one run on one cluster."""

    run: str
    about: Mapping[str, Any]  # layout, device, world, hosts, versions, time
    checks: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether no check failed; a warning doesn't keep a run from starting."""
        return all(check.severity != "problem" for check in self.checks)

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)

    def dump(self) -> dict[str, object]:
        """Plain data for --json."""
        checks = [
            {"name": check.rule, "state": STATES[check.severity], "words": check.what, "fix": check.how,
             "figures": check.data, "seconds": check.seconds}
            for check in self.checks
        ]  # fmt: skip
        return {"run": self.run, "ok": self.ok, "seconds": round(self.seconds, 1), **self.about, "checks": checks}
