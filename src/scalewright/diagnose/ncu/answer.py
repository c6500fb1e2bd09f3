"""The answer of `diagnose` for `ncu --csv`: each kernel's throughput against its peak, and what binds it.

gain of a kernel   share of the time · (1 - pct of peak / BOUND)       as if it came to 80% of its peak
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.diagnose.kernels import short_name
from scalewright.diagnose.ncu.bounds import BOUND, bound, occupancy_limit, sol
from scalewright.diagnose.ncu.metrics import METRICS
from scalewright.diagnose.ncu.table import Launch, read_launches
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.kinds import kind_of
from scalewright.diagnose.verdict import Gain, Verdict

LEAST_GAIN = 2.0  # percent of the kernels' time
MOST_VERDICTS = 3
USUALLY = 0.5  # of what 80% of the peak would gain (a judgement)
SHOWN = tuple(key for key in METRICS if not key.startswith(("limit_", "time")))


def ncu_answer(files: Sequence[Path]) -> dict[str, Any]:
    """Kernels of all files by the time that they took; raises NotATrace where none can be read."""
    launches: list[Launch] = []
    warnings: list[str] = []
    for file in files:
        try:
            launches += read_launches(file)
        except NotATrace as error:
            warnings.append(f"{file.name}: {error}: left out")
    if not launches:
        raise NotATrace(warnings[0].partition(": ")[2].removesuffix(": left out"))
    rows = _kernels(launches)
    if any(row["time_s"] is None for row in rows):
        warnings.append("some kernels have no duration: measure gpu__time_duration.sum too")
    capabilities = sorted({launch.capability for launch in launches if launch.capability})
    return {
        "kind": "kernels",
        "compute_capability": ", ".join(capabilities) or None,
        "launches": sum(launch.count for launch in launches),
        "kernels": rows,
        "verdicts": [verdict.dump() for verdict in _verdicts(rows)],
        "warnings": warnings,
    }


def _kernels(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """One row a kernel's name: sums of times, means of the rest weighted by time; the longest first."""
    by_name: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_name[launch.name].append(launch)
    timed = [launch.values["time_s"] * launch.count for launch in launches if "time_s" in launch.values]
    whole = sum(timed)
    rows = []
    for name, mine in by_name.items():
        times = [launch.values["time_s"] * launch.count for launch in mine if "time_s" in launch.values]
        values = _mean(mine)
        binds = bound(values)
        rows.append({
            "name": name, "short_name": short_name(name), "kind": kind_of(name),
            "count": sum(launch.count for launch in mine),
            "time_s": sum(times) if times else None,
            "time_pct": 100 * sum(times) / whole if times and whole else None,
            **{key: values.get(key) for key in SHOWN},
            "dram_peak_bytes_per_s": _dram_peak(values),
            "occupancy_limit": occupancy_limit(values) or None,
            "peak_pct": sol(values), "bound": binds.what, "why": binds.why, "fix": binds.fix,
        })  # fmt: skip
    return sorted(rows, key=lambda row: -(row["time_s"] or 0.0))


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


def _dram_peak(values: dict[str, float]) -> float | None:
    """The device's peak, from what was achieved and its share."""
    rate, share = values.get("dram_bytes_per_s"), values.get("dram_pct")
    return 100 * rate / share if rate and share else None


def _verdicts(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """The kernels that would gain most by coming nearer to their roof."""
    result = []
    for row in rows:
        if row["peak_pct"] is None or row["time_pct"] is None or row["bound"] == "unknown":
            continue
        most = row["time_pct"] * max(1 - row["peak_pct"] / BOUND, 0.0)
        if most >= LEAST_GAIN:
            share = f"{row['short_name']} takes {row['time_pct']:.0f}% of the kernels' time at {row['why']}"
            gain = Gain(0.0, USUALLY * most, most)
            result.append(Verdict(f"{row['bound']}-bound kernel", [share], row["fix"], 0.6, gain))
    return sorted(result, key=lambda verdict: -verdict.usual_gain)[:MOST_VERDICTS]
