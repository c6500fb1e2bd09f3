"""A machine whose kernels and messages are known as data: what plans on `local` are tested with."""

from __future__ import annotations

from typing import Any

from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.timings import Timings

FLOPS = 50e9  # of every product of the fake machine
BYTES = 10e9  # of every pass over memory
CALL = 2e-6  # of a kernel, however small
LINK = 1e9
MOVES = ("norm", "layer_norm", "gated", "activation", "rope", "residual", "embedding", "loss")


def straight(what: str, rate: float, start: float = CALL, **keys: Any) -> dict[str, Any]:
    """The curve of a kernel that takes `start` and then so many units a second."""
    sizes = [1e2, 1e4, 1e6, 1e8, 1e10]
    return {"what": what, "sizes": sizes, "seconds": [start + size / rate for size in sizes], **keys}


def fake(processes: int = 2, narrow: float = 0.5) -> Timings:
    """A machine whose backward takes twice its forward; bf16 products at `narrow` times fp32's rate."""
    curves: list[dict[str, Any]] = []
    for precision, times in (("fp32", 1.0), ("bf16", narrow)):
        for phase, slower in (("forward", 1.0), ("backward", 2.0)):
            for what in ("linear", "attention"):
                curves.append(straight(what, times * FLOPS / slower, phase=phase, precision=precision))
            curves += [straight(what, BYTES / slower, phase=phase, precision=precision) for what in MOVES]
    curves += [straight("add", 1e9), straight("optimizer", 1e9), {"what": "watched", "sizes": [1], "seconds": [4e-6]}]
    curves += [straight(kind, LINK, 3e-4) for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")]
    return Timings.parse({"processes": processes, "threads": 1, "curves": curves})


def machine(processes: int = 2, **keys: Any) -> ClusterSpec:
    """This machine, as the probe would have found it."""
    device = {
        "id": "cpu", "name": "a CPU", "vendor": "none", "kind": "cpu", "peaks": {"fp32": 6e10, "bf16": 3e10},
        "peak_source": "measured", "memory_bytes": 8e9, "memory_bytes_per_s": 1e10, "multiprocessors": 1,
        "sources": ["a test"],
    }  # fmt: skip
    levels = [
        {"name": "device", "kind": "memory", "size": 1, "bytes_per_s": 1e10, "latency_s": 0},
        {"name": "node", "kind": "loopback", "size": processes, "bytes_per_s": LINK, "latency_s": 3e-5},
    ]
    return ClusterSpec.parse({
        "name": "local", "device": device, "devices_per_node": processes, "nodes": 1,
        "levels": levels[: 1 if processes == 1 else 2],
        "measured": {"timings": fake(processes, **keys).dump()},
    })  # fmt: skip
