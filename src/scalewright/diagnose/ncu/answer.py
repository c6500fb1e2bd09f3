"""The answer of `diagnose` for `ncu --csv`: each kernel's throughput against its peak, and what binds it.

    gain of a kernel   share of the time · (1 - pct of peak / BOUND)       as if it came to 80% of its peak

The limit that binds a kernel, by how near it is to the device's limits:

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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.diagnose.kernels import short_name
from scalewright.diagnose.ncu.table import METRICS, Launch, read_launches
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.kinds import kind_of
from scalewright.diagnose.traces.unpack import read_each
from scalewright.diagnose.verdict import Gain, Verdict

NEAR, BOUND = 60.0, 80.0  # percent of peak
ONE_WAVE = 1.0
LOW = 50.0  # percent: a theoretical occupancy that hides little latency
UNEVEN = 0.7  # achieved over theoretical occupancy
LIMITS = {
    "limit_registers": "registers", "limit_shared_memory": "shared memory", "limit_warps": "the block's size",
    "limit_blocks": "blocks a multiprocessor",
}  # fmt: skip


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
    return Bound("latency", near, "more independent work a thread (larger tiles, vectorised loads, pipelining)")


def _level(values: Mapping[str, float]) -> str:
    """The memory that is busiest: DRAM or a cache."""
    levels = {"DRAM": "dram_pct", "the L2 cache": "l2_pct", "the L1 cache": "l1_pct"}
    there = [(values[key], name) for name, key in levels.items() if key in values]
    busiest = max(there, key=lambda level: level[0], default=None)
    return f" ({busiest[1]} {busiest[0]:.0f}%)" if busiest else ""


LEAST_GAIN = 2.0  # percent of the kernels' time
MOST_VERDICTS = 3
USUALLY = 0.5  # of what 80% of the peak would gain (a judgement)
SHOWN = tuple(key for key in METRICS if not key.startswith(("limit_", "time")))


def ncu_answer(files: Sequence[Path]) -> dict[str, object]:
    """Kernels of all files by the time that they took; raises NotATrace where none can be read."""
    read, warnings = read_each(files, read_launches, NotATrace)
    launches = [launch for of_file in read for launch in of_file]
    if not launches:
        raise NotATrace(warnings[0].partition(": ")[2].removesuffix(": left out"))
    rows, gains = _kernels(launches)
    if any(row["time_s"] is None for row in rows):
        warnings.append("some kernels have no duration: measure gpu__time_duration.sum too")
    capabilities = sorted({launch.capability for launch in launches if launch.capability})
    return {
        "kind": "kernels",
        "compute_capability": ", ".join(capabilities) or None,
        "launches": sum(launch.count for launch in launches),
        "kernels": rows,
        "verdicts": [verdict.dump() for verdict in gains],
        "warnings": warnings,
    }


def _kernels(launches: Sequence[Launch]) -> tuple[list[dict[str, object]], list[Verdict]]:
    """A row a kernel's name (sums of times, means of the rest weighted by time), and what would gain most; by time."""
    by_name: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_name[launch.name].append(launch)
    seconds = {name: _seconds(mine) for name, mine in by_name.items()}
    whole = _seconds(launches) or 0.0
    rows: list[dict[str, object]] = []
    verdicts = []
    for name, mine in sorted(by_name.items(), key=lambda item: -(seconds[item[0]] or 0.0)):
        values, took = _mean(mine), seconds[name]
        binds, peak = bound(values), sol(values)
        share = 100 * took / whole if took is not None and whole else None
        rate, of_peak = values.get("dram_bytes_per_s"), values.get("dram_pct")
        rows.append({
            "name": name, "short_name": short_name(name), "kind": kind_of(name),
            "count": sum(launch.count for launch in mine),
            "time_s": took, "time_pct": share,
            **{key: values.get(key) for key in SHOWN},
            "dram_peak_bytes_per_s": 100 * rate / of_peak if rate and of_peak else None,
            "occupancy_limit": occupancy_limit(values) or None,
            "peak_pct": peak, "bound": binds.what, "why": binds.why, "fix": binds.fix,
        })  # fmt: skip
        most = share * max(1 - peak / BOUND, 0.0) if share is not None and peak is not None else 0.0
        if most >= LEAST_GAIN and binds.what != "unknown":
            line = f"{short_name(name)} takes {share:.0f}% of the kernels' time at {binds.why}"
            gain = Gain(0.0, USUALLY * most, most)
            verdicts.append(Verdict(f"{binds.what}-bound kernel", [line], binds.fix, 0.6, gain))
    return rows, sorted(verdicts, key=lambda verdict: -verdict.usual_gain)[:MOST_VERDICTS]


def _seconds(launches: Sequence[Launch]) -> float | None:
    """The time of all launches that have one; None where none has."""
    times = [launch.values["time_s"] * launch.count for launch in launches if "time_s" in launch.values]
    return sum(times) if times else None


def _mean(launches: Sequence[Launch]) -> dict[str, float]:
    """Each metric's mean over launches, weighted by their time where that is known."""
    result = {}
    for metric in METRICS:
        pairs = [(launch.values[metric], launch.values.get("time_s", 1.0) * launch.count)
                 for launch in launches if metric in launch.values]  # fmt: skip
        weight = sum(some for _, some in pairs)
        if pairs:
            result[metric] = sum(value * some for value, some in pairs) / weight if weight else pairs[0][0]
    return result
