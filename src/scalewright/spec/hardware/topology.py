"""The levels of links that join devices, from the inside out, built from the facts of a device.

level     size        one way, per device            DGX H100        GB200 NVL72     TPU v5e pod
device    1           its own memory                 3.35 TB/s       8 TB/s          810 GB/s
domain    n           NVLink, xGMI, a torus          8: 450 GB/s     72: 900 GB/s    256: 180 GB/s (2D torus)
node      m > n       PCIe, where no domain covers it
fabric    unbounded   InfiniBand, RoCE, EFA, DCN     50 GB/s         50 GB/s         3.1 GB/s

A fabric may be narrower further out: `pod` devices reach each other at the full rate, and what leaves a pod shares
uplinks of 1 / `oversubscription` of it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, FiniteFloat, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.devices import DeviceSpec, Link
from scalewright.spec.hardware.timings import Timings

LevelName = Literal["device", "domain", "node", "fabric"]
LevelKind = Literal[
    "memory", "nvlink", "xgmi", "ici", "neuronlink", "pcie", "shared-memory", "loopback", "infiniband", "roce",
    "efa", "tcpx", "ethernet", "dcn",
]  # fmt: skip
FabricKind = Literal["infiniband", "roce", "efa", "tcpx", "ethernet", "dcn"]
FABRICS: tuple[FabricKind, ...] = get_args(FabricKind)

_NCCL = "NCCL's own tuning constants (src/graph/tuning.cc, hwLat, ring, Simple)"
_RCCL = "RCCL's own tuning constants (tuning model, hwLat, ring, Simple)"
# Seconds for one hop of a large message, where nothing was measured.
LATENCY: dict[str, tuple[float, str]] = {
    "memory": (0.0, "none counted"),
    "nvlink": (3.4e-6, _NCCL),
    "pcie": (5.7e-6, _NCCL),
    "infiniband": (14.0e-6, _NCCL),
    "roce": (14.0e-6, _NCCL),
    "efa": (75.0e-6, "what AWS's plug-in states to NCCL on p4d, p5 and trn2 (aws-ofi-nccl, platform-aws.cpp)"),
    "tcpx": (60.0e-6, "half of a small all-reduce on two a3-mega nodes, 123 us (nccl-tests, create-a3mega-ztan-fork)"),
    "ethernet": (14.0e-6, f"assumed: as a network hop in {_NCCL}"),
    "xgmi": (3.6e-6, _RCCL),
    "ici": (1.0e-6, "the scaling book: about 1 microsecond a hop"),
    "neuronlink": (3.4e-6, f"assumed: as NVLink in {_NCCL}"),
    "dcn": (14.0e-6, f"assumed: as a network hop in {_NCCL}"),
    "shared-memory": (5.0e-6, "assumed"),
    "loopback": (30.0e-6, "assumed"),
}


class Level(Spec):
    """One level of the topology: `size` devices that reach each other at this rate."""

    name: LevelName
    kind: LevelKind
    size: int | None = Field(ge=1)  # devices inside one instance; null = as many as there are
    bytes_per_s: float = Field(gt=0)  # one way, per device
    latency_s: float = Field(ge=0)
    pair_bytes_per_s: float | None = Field(None, gt=0)  # between two devices, where it's less
    torus_axes: int | None = Field(None, ge=1)
    wraps_at: int | None = Field(None, ge=1)  # an axis of the torus wraps only at multiples of this
    pod: int | None = Field(None, ge=1)  # devices that reach each other at the full rate; null = all
    oversubscription: float = Field(1.0, ge=1)  # a pod's rate over that of its uplinks: 7 where it is written 1:7
    source: str = "as given"


class Fabric(Spec):
    """The network between nodes, as a preset or a file gives it."""

    kind: FabricKind | None = None  # null: InfiniBand is assumed, and said
    bytes_per_s: float = Field(gt=0)
    latency_s: float | None = Field(None, ge=0)
    pod: int | None = Field(None, ge=1)
    oversubscription: float = Field(1.0, ge=1)
    source: str = "as given"

    @model_validator(mode="after")
    def _check(self) -> Fabric:
        if self.oversubscription > 1 and self.pod is None:
            how = "add `pod`: how many devices reach each other at the full rate"
            raise UserError(f"oversubscription is {self.oversubscription:g}, of which devices?", "fabric", how)
        return self


class MeasuredLevel(Spec):
    """The measured rates of a level."""

    bytes_per_s: float | None = Field(None, gt=0)
    latency_s: float | None = Field(None, ge=0)


class Measured(Spec):
    """Rates measured on the machine itself, beside the published ones."""

    matmul_flops: dict[str, float] = Field(default_factory=dict)  # precision -> FLOP/s of one device
    memory_bytes_per_s: float | None = Field(None, gt=0)
    levels: dict[LevelName, MeasuredLevel] = Field(default_factory=dict)
    constants: dict[str, FiniteFloat] = Field(default_factory=dict)  # of the planner, fitted to runs here
    timings: Timings | None = None  # curves of kernels and messages, from which a CPU is priced
    when: str | None = None
    how: str = ""
    software: dict[str, str] = Field(default_factory=dict)


def default_devices_per_node(device: DeviceSpec) -> int:
    """The usual devices of a node: those of its host or domain, else eight GPUs on PCIe, else one."""
    domain = device.link.domain if device.link else 1
    return device.devices_per_host or (max(domain, 8) if device.kind == "gpu" else domain)


def usual_link(device: DeviceSpec, per_node: int) -> Link | None:
    """The device's link, its domain cut to the node unless it spans hosts (a TPU pod, an NVL72 rack)."""
    if device.link is None or device.devices_per_host is not None:
        return device.link
    return device.link.replace(domain=min(device.link.domain, per_node))


def usual_fabric(device: DeviceSpec) -> Fabric | None:
    """The network of the device's own figures; None without one."""
    if device.network_bytes_per_s is None:
        return None
    kinds: dict[str, FabricKind] = {"tpu": "dcn", "npu": "ethernet"}
    sourced = "network_bytes_per_s" not in device.recalled and "all" not in device.recalled
    source = device.sources[0] if sourced else f"assumed: the usual network of {device.name}, written from memory"
    kind = kinds.get(device.kind, "infiniband")
    return Fabric(kind=kind, bytes_per_s=device.network_bytes_per_s, source=source)


def build_levels(device: DeviceSpec, per_node: int, link: Link | None, fabric: Fabric | None) -> tuple[Level, ...]:
    """The levels of a device, its scale-up link and a fabric."""

    def level(name: LevelName, kind: LevelKind, size: int | None, rate: float, source: str, **more: Any) -> Level:
        more["latency_s"] = LATENCY[kind][0] if more.get("latency_s") is None else more["latency_s"]
        return Level(name=name, kind=kind, size=size, bytes_per_s=rate, source=source, **more)

    facts = device.sources[0]
    levels = [level("device", "memory", 1, device.memory_bytes_per_s, facts)]
    if link and link.domain > 1:
        shape = {"pair_bytes_per_s": link.pair_bytes_per_s, "torus_axes": link.torus_axes, "wraps_at": link.wraps_at}
        levels.append(level("domain", link.kind, link.domain, link.bytes_per_s, facts, **shape))
    if per_node > (levels[-1].size or 1):
        if device.host_bytes_per_s is None:
            how = "give a link, or levels"
            raise UserError(f"the link that joins {per_node} {device.name} in a node is not known", "cluster", how)
        levels.append(level("node", "pcie", per_node, device.host_bytes_per_s, facts))
    if fabric:
        kind, source = fabric.kind or "infiniband", fabric.source
        if fabric.kind is None:
            source = (
                f"assumed InfiniBand, as fabric.kind isn't given (roce, efa, tcpx, ethernet); its rate: {fabric.source}"
            )
        more = {"latency_s": fabric.latency_s, "pod": fabric.pod, "oversubscription": fabric.oversubscription}
        levels.append(level("fabric", kind, None, fabric.bytes_per_s, source, **more))
    return tuple(levels)
