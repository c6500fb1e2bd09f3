"""The roofline of this CPU: products of growing intensity, beside the lower of two limits.

    FLOP/s = min(peak, intensity x bytes/s)       intensity = FLOP / bytes moved; they meet at the ridge

The peak is that of the best square product, the bandwidth that of a large copy; products of n x k and k x n then have
every intensity between, by k (Williams et al. 2009).
"""

from __future__ import annotations

from typing import Any

from scalewright.learn.lab.bench import Bench, clock
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.learn.roofline import matmul_floor, matmul_flops, ridge_point
from scalewright.spec.common.formatting import metric

SIDE = 2048
DEPTHS = (1, 4, 16, 64, 256, 1024)
SQUARES = (512, 1024, 1536)
COPY = 1 << 26  # bytes, beyond any cache
WIDTH = 4.0


def run(bench: Bench) -> Outcome:
    """One thread's peak, bandwidth, and products between them."""
    side, repeats = (1024, 3) if bench.short else (SIDE, 7)
    seen = bench.timed("products and copies", lambda: _measure(side, repeats))
    peak, rate = seen["peak"], seen["rate"]
    reached = {int(depth): flops for depth, flops in seen["reached"].items()}
    floors = {depth: matmul_floor(side, depth, side, peak, rate, WIDTH) for depth in reached}
    roof = {depth: matmul_flops(side, depth, side) / floor.seconds for depth, floor in floors.items()}
    intensity = {depth: floor_intensity(side, depth) for depth in reached}
    shallow, deep = min(reached), max(reached)
    values = [
        Value(f"k = {depth}: FLOP/s", reached[depth], roof[depth], "FLOP/s", "min(peak, intensity x bytes/s)", 0.15,
              "a roof: caches may lift it a little", "at most", timed=True)
        for depth in reached
    ]  # fmt: skip
    values += [
        Value(f"k = {shallow}: share of its roof", reached[shallow] / roof[shallow], 0.3, "share",
              "bound by memory", 0.0, "writes are read first, by most CPUs: half of the roof", "at least", timed=True),
        Value(f"k = {deep}: share of its roof", reached[deep] / roof[deep], 0.6, "share", "bound by compute", 0.0,
              "another shape than the best one", "at least", timed=True),
    ]  # fmt: skip
    lines = [
        Curve("measured", [(intensity[depth], reached[depth]) for depth in reached]),
        Curve("roof", [(intensity[depth], roof[depth]) for depth in reached], expected=True),
    ]
    rows = [[f"k = {depth}", f"{intensity[depth]:.2f}", metric(reached[depth], "FLOP/s"), metric(roof[depth], "FLOP/s"),
             floors[depth].bound] for depth in reached]  # fmt: skip
    heads = ["product", "FLOP a byte", "measured", "roof", "bound by"]
    return Outcome(
        values,
        [curves("FLOP/s by intensity", "FLOP a byte", "FLOP/s", lines, ("", "FLOP/s"), log="xy"),
         table(f"{side} x k times k x {side}, fp32, one thread", heads, rows)],
        [f"peak {metric(peak, 'FLOP/s')}, bandwidth {metric(rate, 'B/s')}: the ridge is at "
         f"{ridge_point(peak, rate):.0f} FLOP a byte"],
    )  # fmt: skip


def floor_intensity(side: int, depth: int) -> float:
    """FLOP of a byte that such a product has to move: both inputs once, the output once."""
    return matmul_flops(side, depth, side) / (WIDTH * (2 * side * depth + side * side))


def _measure(side: int, repeats: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)

    def product(rows: int, depth: int) -> float:
        """FLOP/s of [rows, depth] times [depth, rows]."""
        a, b, out = torch.randn(rows, depth), torch.randn(depth, rows), torch.empty(rows, rows)
        return matmul_flops(rows, depth, rows) / clock(lambda: torch.mm(a, b, out=out), repeats)

    source = torch.ones(COPY // 4)
    target = torch.empty_like(source)
    rate = 2.0 * COPY / clock(lambda: target.copy_(source), repeats)
    peak = max(product(size, size) for size in SQUARES)
    return {"peak": peak, "rate": rate, "reached": {depth: product(side, depth) for depth in DEPTHS}}
