"""A cluster as numbers for the formulas: rates, sizes and latencies of its device and its links.

rank order, inside out: tp, cp, dp, pp          domain: NVLink, xGMI, a torus, or PCIe where nothing is faster
                                                fabric: InfiniBand, RoCE, EFA, TCP, DCN; one share a device
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scalewright.plan.constants import Constants, constants
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.device_families import Family
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.hardware.topology import LATENCY

# Precisions by the width of a matrix product's inputs: 0 = 32 bits, 1 = 16, 2 = 8, 3 = 4.
WIDTHS = {"fp32": 0, "tf32": 0, "bf16": 1, "fp16": 1, "fp8": 2, "mxfp8": 2, "int8": 2, "fp4": 3, "nvfp4": 3}
# What a device runs in place of a precision that it hasn't: the first of these that it has.
_INSTEAD = {
    **dict.fromkeys(("fp4", "nvfp4"), ("fp8", "bf16", "fp16", "fp32")),
    **dict.fromkeys(("fp8", "mxfp8", "int8"), ("bf16", "fp16", "fp32")),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
}


HOST_BYTES = 250e9  # of a host's memory for each device where a cluster gives none: a DGX H100 has 2 TB for eight
HOME_BYTES = 32e9  # the same of a card for a desk: GeForce, which have no peer-to-peer copies


@dataclass(frozen=True)
class Chip:
    """A device and its links; FLOP/s, bytes/s (per device, one way), latencies in seconds, sizes in bytes."""

    name: str
    family: Family
    kind: str
    peaks: tuple[tuple[str, float], ...]
    memory_rate: float
    units: float  # multiprocessors
    capacity: float
    domain: int  # devices that the fast links join
    link_rate: float
    link_delay: float
    node: int
    fabric_rate: float
    fabric_delay: float
    half: str  # what `precision: auto` is on it, where nothing was timed
    host_rate: float
    host_bytes: float  # of a host's memory for each device
    measured: bool  # whether its peaks are rates of products that were timed on it
    link_kind: str = "link"  # inside the domain: nvlink, xgmi, ici, pcie, ...
    fabric_kind: str = "network"  # beyond it: one of topology.FABRICS
    pod: int | None = None  # devices that the fabric joins at the full rate; None: all
    oversubscription: float = 1.0  # a pod's rate over that of its uplinks
    one_node: bool = False  # whether nothing joins nodes
    torus_axes: int = 0  # of the domain's links; 0: no torus
    wraps_at: int = 1  # length from which an axis of the torus wraps round
    staged: bool = False  # what a domain's devices send goes through host memory
    constants: tuple[tuple[str, float], ...] = ()  # fitted to runs on it, in place of the shipped ones
    timings: Timings | None = None  # of a CPU: measured seconds of kernels and messages (cost/cpu.py)

    @property
    def host_assumed(self) -> list[str]:
        """What was assumed of the hosts' memory, in words; empty where the cluster gives it."""
        words = f"a host has {self.host_bytes / 1e9:.0f} GB of memory for each of its devices: set host_memory_bytes"
        return [words] if self.host_bytes in (HOST_BYTES, HOME_BYTES) else []

    def peak(self, precision: str) -> tuple[str, float]:
        """The precision that matrix products run in, and its FLOP/s: a wider one where the device lacks it.

        Raises UserError for an unknown precision, or where the device lacks the wider ones, too.
        """
        if precision not in WIDTHS:
            raise unknown("precision", precision, WIDTHS, "precision")
        rates = dict(self.peaks)
        for name in (precision, *_INSTEAD.get(precision, ())):
            if name in rates:
                return name, rates[name]
        have = ", ".join(sorted(rates))
        raise UserError(f"{self.name} has no rate in {precision}", "precision", f"use one of {have}")


def constants_of(chips: Iterable[Chip]) -> Constants:
    """The constants to price these chips by: the shipped ones, with those that were fitted to them.

    Raises UserError for a constant that doesn't exist, and for chips that were fitted apart.
    """
    fitted = {chip.constants for chip in chips} or {()}
    if len(fitted) > 1:
        how = "predict the rows of each calibrated cluster apart"
        raise UserError("several clusters, each with constants of its own", "measured.constants", how)
    changes = dict(fitted.pop())
    for name in changes:
        constants()[name]  # raises for an unknown one
    return constants().with_values(changes) if changes else constants()


def chip_of(cluster: ClusterSpec, node_gbps: float | None = None, kind: str | None = None) -> Chip:
    """A cluster's device and links; `node_gbps` (Gbit/s of a whole node, one way) and `kind` replace its fabric's."""
    device, levels = cluster.device, cluster.effective_levels()
    inner = [level for level in levels if level.name in ("domain", "node")]
    fabric = next((level for level in levels if level.name == "fabric"), None)
    memory, fast = levels[0].bytes_per_s, inner[0] if inner else None
    rate = fast.bytes_per_s if fast else memory
    outer = fabric.bytes_per_s if fabric else inner[-1].bytes_per_s if inner else rate
    if node_gbps:
        outer = node_gbps * 1e9 / 8 / cluster.devices_per_node
    delay = next((level.latency_s for level in (fabric, fast) if level), 14e-6)
    peaks = {name: float(peak) for name in device.precisions if (peak := device.peak(name)) is not None}
    for same, name in (("mxfp8", "fp8"), ("nvfp4", "fp4")):
        if name in peaks:
            peaks[same] = peaks[name]
    measured, usual_host = cluster.measured, HOST_BYTES if device.peer_to_peer else HOME_BYTES
    return Chip(
        name=device.id,
        family=device.resolved_family,
        kind=device.kind,
        peaks=tuple(peaks.items()),
        memory_rate=memory,
        units=float(device.multiprocessors or 1),
        capacity=device.capacity_bytes,
        domain=(fast.size or 1) if fast else 1,
        link_rate=rate,
        link_delay=fast.latency_s if fast else 0.0,
        node=cluster.devices_per_node,
        fabric_rate=outer,
        fabric_delay=delay if kind is None else LATENCY[kind][0],
        half=device.half,
        host_rate=device.host_bytes_per_s or 16e9,
        host_bytes=cluster.host_memory_bytes / cluster.devices_per_node if cluster.host_memory_bytes else usual_host,
        measured=bool(measured and measured.matmul_flops),
        constants=tuple(sorted(measured.constants.items())) if measured else (),
        timings=measured.timings if measured else None,
        link_kind=fast.kind if fast else "link",
        torus_axes=(fast.torus_axes or 0) if fast else 0,
        wraps_at=(fast.wraps_at or 1) if fast else 1,
        fabric_kind=kind or (fabric.kind if fabric else "network"),
        pod=fabric.pod if fabric else None,
        oversubscription=fabric.oversubscription if fabric else 1.0,
        one_node=fabric is None,
        staged=bool(fast and fast.kind == "pcie" and not device.peer_to_peer),
    )
