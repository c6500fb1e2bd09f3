"""The kernels that took the time: by name, by kind, and how many are too short to be worth a launch.

for each name   count · total · mean · share of all kernel time · kind (traces/kinds.py)
short           kernels under `SHORT`: a launch costs the host about as much, so that many of them bind a run
                to the host however fast the GPU is
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.traces.kinds import kind_of
from scalewright.diagnose.traces.trace import KERNEL, Trace

SHORT = 10_000  # ns
NAMESPACES = re.compile(
    r"\b(?:void|at|native|cudnn|cuda|cub|std|thrust|detail|ops|cnn|\(anonymous namespace\))(?:::|\s)"
)
FUNCTOR = re.compile(r"(\w*(?:[Ff]unctor|_kernel_cuda|_kernel_impl)\w*)")


@dataclass(frozen=True)
class Kernels:
    """Kernels of one name; `total` and `mean` in nanoseconds, `share_pct` of the time of all kernels."""

    name: str
    kind: str
    count: int
    total: int
    share_pct: float

    @property
    def mean(self) -> float:
        """Nanoseconds of one."""
        return self.total / self.count


def top_kernels(trace: Trace, most: int = 20) -> list[Kernels]:
    """The names with the most time, the largest first."""
    count, total = _by_name(trace)
    whole = max(int(total.sum()), 1)
    order = np.argsort(-total, kind="stable")[:most]
    return [
        Kernels(
            trace.names[i],
            kind_of(trace.names[i]),
            int(count[i]),
            int(total[i]),
            100 * float(total[i]) / whole,
        )
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
