"""The kernels that took the time: by name, by kind, and how many are too short to be worth a launch.

Kernels under `SHORT` take no longer than a launch costs the host: many of them bind a run to the host, however fast
the GPU is.

How a kernel's blocks fill the device:

    blocks on a multiprocessor = least of   its threads / a block's         its registers / a block's
                                            its shared memory / a block's   its most blocks
    occupancy = resident warps / most warps
    waves     = blocks of the grid / (blocks on a multiprocessor x multiprocessors)
    filled    = waves / whole waves: the last wave leaves multiprocessors idle, a grid below one wave most

A multiprocessor is four quarters that share no registers, which are given out by 256 to a warp; a block takes 1 KiB
more of shared memory from compute capability 8.0 on (CUDA C++ Programming Guide, "Compute Capabilities"). What a
multiprocessor has is in the trace's device; how many blocks it takes is not. NVIDIA's devices alone: AMD's traces have
no registers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from scalewright.diagnose.traces.kinds import communicates, kind_of
from scalewright.diagnose.traces.trace import KERNEL, Launched, Trace

SHORT = 10_000  # ns
NAMESPACES = re.compile(
    r"\b(?:void|at|native|cudnn|cuda|cub|std|thrust|detail|ops|cnn|\(anonymous namespace\))(?:::|\s)"
)
FUNCTOR = re.compile(r"(\w*(?:[Ff]unctor|_kernel_cuda|_kernel_impl)\w*)")
# Most blocks on a multiprocessor, by compute capability: the guide's table of technical specifications.
BLOCKS = {
    (7, 0): 32, (7, 2): 32, (7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32,
    (10, 3): 32, (12, 0): 24,
}  # fmt: skip
WARP, QUARTERS, REGISTERS, RESERVED = 32, 4, 256, 1024
MOST = 20  # kernels
NEEDS = (
    "computeMajor", "computeMinor", "numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor",
    "sharedMemPerMultiprocessor",
)  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """Kernels of one name; `total` in nanoseconds, `share_pct` of the time of all kernels."""

    name: str
    kind: str
    count: int
    total: int
    share_pct: float


def top_kernels(trace: Trace, most: int = MOST) -> list[Kernels]:
    """The names with the most time, the largest first."""
    count, total = _by_name(trace)
    whole = max(int(total.sum()), 1)
    order = np.argsort(-total, kind="stable")[:most]
    return [
        Kernels(trace.names[i], kind_of(trace.names[i]), int(count[i]), int(total[i]), 100 * float(total[i]) / whole)
        for i in order.tolist()
        if count[i]
    ]


def short_name(name: str, most: int = 60) -> str:
    """A kernel's name without namespaces, template and call arguments, but with the functor in them."""
    plain = NAMESPACES.sub("", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0].strip() or plain
    inner = [word for word in FUNCTOR.findall(plain[len(head) :]) if word != head]
    text = f"{head}<{inner[0]}>" if inner else head
    return text if len(text) <= most else text[: most - 1] + "…"


def by_kind(trace: Trace) -> dict[str, float]:
    """Share of all kernel time by kind, in percent, the largest first."""
    _, total = _by_name(trace)
    shares: dict[str, float] = {}
    for name, time in zip(trace.names, total.tolist(), strict=True):
        if time:
            shares[kind_of(name)] = shares.get(kind_of(name), 0.0) + 100 * time / float(total.sum())
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def short_kernels(trace: Trace) -> tuple[int, int]:
    """Kernels shorter than `SHORT`, and all of them."""
    kernels = trace.category == KERNEL
    return int((kernels & (trace.end - trace.start < SHORT)).sum()), int(kernels.sum())


def _by_name(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    kernels = trace.category == KERNEL
    name, duration = trace.name[kernels], (trace.end - trace.start)[kernels]
    size = len(trace.names)
    count = np.bincount(name, minlength=size)
    return count, np.bincount(name, weights=duration, minlength=size).astype(np.int64)


@dataclass(frozen=True)
class Occupancy:
    """Of one kernel at one launch configuration; `blocks`: on a multiprocessor at once."""

    blocks: int
    occupancy: float
    limited_by: str
    waves: float

    @property
    def filled(self) -> float:
        """The part of the multiprocessors' room that its waves use."""
        return self.waves / ceil(self.waves)


def occupancies(trace: Trace) -> list[dict[str, object]]:
    """The kernels that took the most time, by name and launch; none where the trace can't tell."""
    if not all(isinstance(trace.device.get(key), int) for key in NEEDS):
        return []
    talks = communicates(trace.names)
    length = trace.end - trace.start
    calls, total = Counter[tuple[int, Launched]](), Counter[tuple[int, Launched]]()
    for row, launched in trace.launched.items():
        name = int(trace.name[row])
        if not talks[name]:
            calls[name, launched] += 1
            total[name, launched] += int(length[row])
    all_kernels = max(int(length[trace.category == KERNEL].sum()), 1)
    return [
        {"kernel": short_name(trace.names[name]), "calls": calls[name, launched], "total_s": took / 1e9,
         "share_pct": 100 * took / all_kernels, "grid": prod(launched.grid), "block": prod(launched.block),
         "registers": launched.registers, "shared_bytes": launched.shared, "occupancy_pct": 100 * fills.occupancy,
         "limited_by": fills.limited_by, "waves": fills.waves, "filled_pct": 100 * fills.filled}
        for (name, launched), took in total.most_common(MOST)
        if (fills := occupancy(launched, trace.device)) is not None
    ]  # fmt: skip


def occupancy(launched: Launched, device: Mapping[str, Any]) -> Occupancy | None:
    """Of a launch on a device with these properties; None where it fits none or isn't known."""
    capability = device["computeMajor"], device["computeMinor"]
    threads, blocks = prod(launched.block), prod(launched.grid)
    if threads < 1 or blocks < 1 or capability not in BLOCKS or device["numSms"] < 1:
        return None
    warps = ceil(threads / WARP)
    limits = {"blocks": BLOCKS[capability], "threads": device["maxThreadsPerMultiprocessor"] // (warps * WARP)}
    if launched.registers > 0:
        of_warp = ceil(launched.registers * WARP / REGISTERS) * REGISTERS
        limits["registers"] = device["regsPerMultiprocessor"] // QUARTERS // of_warp * QUARTERS // warps
    if launched.shared > 0:
        taken = launched.shared + (RESERVED if capability >= (8, 0) else 0)
        limits["shared memory"] = device["sharedMemPerMultiprocessor"] // taken
    resident = min(limits.values())
    if resident < 1:
        return None
    limited_by = " and ".join(name for name, limit in limits.items() if limit == resident)
    most = device["maxThreadsPerMultiprocessor"] / WARP
    return Occupancy(resident, resident * warps / most, limited_by, blocks / (resident * device["numSms"]))
