"""Matrix products and attention beside the device's roof, where the trace has the shapes of operators.

    aten::mm [8192, 4096] x [4096, 1536]   FLOPs = 2 · 8192 · 4096 · 1536     bytes = inputs and output
       └─► kernels launched inside it      least time = max(FLOPs / peak, bytes / memory rate)
                                           share of the roof = least time / measured time

Shapes come with `record_shapes=True`; the roof is the published one of the device that the trace names (Williams et al.
2009, "Roofline"). Attention counts the whole square: a causal one computes half of it. What has no shape (fused
kernels, CUDA graphs, Triton's) isn't in these sums, so that the share of the peak over the window is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from scalewright.diagnose.ranks import Rank
from scalewright.diagnose.traces.trace import KERNEL, Trace

PRECISIONS = {
    "c10::half": ("fp16", 2), "c10::bfloat16": ("bf16", 2), "float": ("fp32", 4),
    "c10::float8_e4m3fn": ("fp8", 1), "c10::float8_e5m2": ("fp8", 1),
}  # fmt: skip
MOST = 40  # rows
Shape = list[int]


@dataclass
class Product:
    """The calls of one operator at one shape: seconds of their kernels, FLOPs and least bytes of a call."""

    name: str
    precision: str
    flops: float
    bytes: float
    calls: int = 0
    seconds: float = 0.0


def roofs(rank: Rank) -> dict[str, object] | None:
    """The products of a rank with their rates; None without shapes, or for a device that isn't known."""
    if not (products := _products(rank)):
        return None
    from scalewright.spec.hardware.devices import match_gpu

    device = match_gpu(str(rank.trace.device.get("name")))
    if device is None:
        return None
    rows, computed, least, busy = [], 0.0, 0.0, 0.0  # seconds at the peak, at the roof, and measured
    for product in sorted(products, key=lambda some: -some.seconds):
        if product.seconds > 0 and (peak := device.peak(product.precision)):
            took, moved = product.seconds / product.calls, product.bytes / device.memory_bytes_per_s
            share = max(product.flops / peak, moved) / took
            busy += product.seconds
            computed += product.calls * product.flops / peak
            least += product.seconds * share
            rows.append({
                "name": product.name, "precision": product.precision, "calls": product.calls,
                "total_s": product.seconds, "flops": product.flops, "bytes": product.bytes,
                "flops_per_s": product.flops / took, "bytes_per_s": product.bytes / took, "peak_flops_per_s": peak,
                "share_of_roof": share, "bound": "compute" if product.flops / peak >= moved else "memory",
            })  # fmt: skip
    if not rows:
        return None
    window = rank.breakdown.window / 1e9
    return {
        "of_peak_pct": 100 * computed / window,
        "of_roof_pct": 100 * least / busy,
        "of_window_pct": 100 * busy / window,
        "products": rows[:MOST],
    }


def _products(rank: Rank) -> list[Product]:
    """By operator, shape and precision; with the kernels that were launched inside its calls."""
    trace = rank.trace
    products: dict[tuple[str, str], Product] = {}
    launched, none = _launched(trace), (np.empty(0), np.empty(0, dtype=int))
    for row, (dims, types) in trace.shapes.items():
        when, kernels = launched.get(int(trace.lane[row]), none)
        first, last = np.searchsorted(when, [trace.start[row], trace.end[row]])
        name, kernels = trace.names[trace.name[row]], kernels[first:last]
        work = _work(name, dims)
        precision = _precision(types, [trace.names[trace.name[kernel]] for kernel in kernels[:1]])
        if not len(kernels) or work is None or precision is None:
            continue
        words = f"{name.removeprefix('aten::')} {' x '.join(map(str, work[2]))}"
        made = Product(words, precision[0], work[0], work[1] * precision[1])
        product = products.setdefault((words, precision[0]), made)
        product.calls += 1
        product.seconds += float((trace.end - trace.start)[kernels].sum()) / 1e9
    return [*products.values()]


def _launched(trace: Trace) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By thread the times of launches, in order, and the rows of their kernels."""
    kernels = np.flatnonzero((trace.category == KERNEL) & (trace.launches >= 0))
    kernels = kernels[np.argsort(trace.start[trace.launches[kernels]], kind="stable")]
    calls = trace.launches[kernels]
    by_thread = {int(lane): trace.lane[calls] == lane for lane in np.unique(trace.lane[calls])}
    return {lane: (trace.start[calls[mine]], kernels[mine]) for lane, mine in by_thread.items()}


def _work(name: str, dims: Sequence[Any]) -> tuple[float, float, list[Shape]] | None:
    """FLOPs, elements read and written at least, and the shapes that tell; None for what isn't counted."""
    shapes = [shape for shape in dims if isinstance(shape, list) and shape and all(type(n) is int for n in shape)]
    if name in ("aten::mm", "aten::_scaled_mm", "aten::bmm"):
        shapes = shapes[:2]
    elif name in ("aten::addmm", "aten::baddbmm"):
        shapes = shapes[1:3]
    elif "attention" in name:
        return _attention(name, shapes)
    if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]) or shapes[0][-1] != shapes[1][-2]:
        return None
    (a, b), batch = shapes, prod(shapes[0][:-2])
    rows, inner, columns = a[-2], a[-1], b[-1]
    elements = batch * (rows * inner + inner * columns + rows * columns)
    return 2.0 * batch * rows * inner * columns, elements, shapes


def _attention(name: str, shapes: list[Shape]) -> tuple[float, float, list[Shape]] | None:
    """Two products of the forward; five of the backward, which recomputes the scores (Dao 2023 §2.3)."""
    backward = "backward" in name
    heads = [shape for shape in shapes if len(shape) == 4][1 if backward else 0 :][:3]
    if len(heads) < 3:
        return None
    q, k = heads[0], heads[1]
    batch, length, keys, width = q[0] * q[1], q[2], k[2], q[3]  # [B, H, S, D]
    products = 5 if backward else 2
    size = sum(prod(shape) for shape in heads) + prod(q)
    return 2.0 * products * batch * length * keys * width, size * (2 if backward else 1), [q, k]


def _precision(types: Sequence[Any], kernels: Sequence[str]) -> tuple[str, int] | None:
    """Of the first input that has numbers; TF32 where a kernel's name tells."""
    for dtype in types:
        if isinstance(dtype, str) and dtype.lower() in PRECISIONS:
            name, width = PRECISIONS[dtype.lower()]
            narrow = name == "fp32" and any("tf32" in kernel.lower() for kernel in kernels)
            return ("tf32", width) if narrow else (name, width)
    return None
