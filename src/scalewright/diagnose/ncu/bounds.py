"""The limit that binds a kernel, by how near it is to the device's limits: Nsight Compute's own thresholds.

    pct of peak   0 ─────────────── 60 ──────── 80 ──── 100
                  latency: neither  │  near it  │ bound by the higher of compute and memory
                  limit is near

    latency  ──► fewer than one wave of blocks: a grid too small for the device
             ──► theoretical occupancy below a half: registers, shared memory or the block's size
             ──► achieved far below theoretical: blocks of different length, or a tail
             ──► else too little work in flight for a warp

The thresholds are those of ncu's "Speed Of Light" rules (Nsight Compute's Profiling Guide).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NEAR, BOUND = 60.0, 80.0  # percent of peak
ONE_WAVE = 1.0
LOW = 50.0  # percent: a theoretical occupancy that hides little latency
UNEVEN = 0.7  # achieved over theoretical occupancy
LIMITS = {
    "limit_registers": "registers",
    "limit_shared_memory": "shared memory",
    "limit_warps": "the block's size",
    "limit_blocks": "blocks a multiprocessor",
}


@dataclass(frozen=True)
class Bound:
    """The bound of a kernel (`compute`, `memory`, `latency`, `unknown`), why, and what would help."""

    what: str
    why: str
    fix: str


def bound(values: Mapping[str, float]) -> Bound:
    """The bound of a kernel by its metrics."""
    compute, memory = values.get("compute_pct"), values.get("memory_pct", values.get("dram_pct"))
    if compute is None or memory is None:
        return Bound("unknown", "without both throughputs of the Speed Of Light section nothing tells", "")
    near = f"{compute:.0f}% of its peak in compute, {memory:.0f}% in memory"
    if max(compute, memory) < NEAR:
        return _latency(values, near)
    if compute >= memory:
        tensor = values.get("tensor_pct")
        if tensor is not None and tensor < NEAR / 2:
            fix = "use the tensor cores (bf16 or fp8, sizes that are multiples of 8 or 16), or compute less"
            return Bound("compute", f"{near}, the tensor cores {tensor:.0f}%", fix)
        return Bound("compute", near, "a lower precision, or fewer operations: it is near its roof")
    return Bound("memory", f"{near}{_level(values)}", "fuse it with its neighbours, or move fewer bytes")


def sol(values: Mapping[str, float]) -> float | None:
    """The higher of both throughputs, in percent of peak; None without either."""
    both = [values[key] for key in ("compute_pct", "memory_pct", "dram_pct") if key in values]
    return min(max(both), 100.0) if both else None


def occupancy_limit(values: Mapping[str, float]) -> str:
    """The resource that allows the fewest blocks a multiprocessor; empty where it wasn't recorded."""
    limits = {name: values[key] for key, name in LIMITS.items() if key in values}
    return min(limits, key=limits.__getitem__) if limits else ""


def _latency(values: Mapping[str, float], near: str) -> Bound:
    waves, limit = values.get("waves"), occupancy_limit(values)
    theoretical, achieved = values.get("theoretical_occupancy_pct"), values.get("occupancy_pct")
    if waves is not None and waves < ONE_WAVE:
        why = f"{near}: its blocks fill {waves:.2f} of a wave, so that multiprocessors stand idle"
        return Bound("latency", why, "a larger micro-batch, fused or grouped kernels, or a split along K")
    if theoretical is not None and theoretical < LOW:
        why = f"{near}: at most {theoretical:.0f}% of the warps fit" + (f", by {limit}" if limit else "")
        return Bound("latency", why, f"blocks that need less of {limit or 'what limits them'}, other tiles")
    if theoretical and achieved is not None and achieved < UNEVEN * theoretical:
        why = f"{near}: {achieved:.0f}% of the warps are there where {theoretical:.0f}% fit"
        return Bound("latency", why, "blocks of even length, more waves, or a persistent kernel")
    return Bound(
        "latency", near, "more independent work a thread (larger tiles, vectorised loads, pipelining)"
    )


def _level(values: Mapping[str, float]) -> str:
    """The memory that is busiest: DRAM or a cache."""
    levels = {"DRAM": "dram_pct", "the L2 cache": "l2_pct", "the L1 cache": "l1_pct"}
    there = {name: values[key] for name, key in levels.items() if key in values}
    if not there:
        return ""
    busiest = max(there, key=there.__getitem__)
    return f" ({busiest} {there[busiest]:.0f}%)"
