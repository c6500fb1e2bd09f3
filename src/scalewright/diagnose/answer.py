"""The answer of `diagnose` for traces, with the keys that docs and `--json` promise.

    Ranks ──► {kind, ranks, window_s, steps, breakdown_pct, per_rank, communication, phases_pct,
               layers, idle_causes_pct, top_kernels, verdicts, stragglers, unclassified, warnings}

Percentages are of the window; those over ranks are means of theirs. `breakdown_pct` adds up to 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import breakdown_of_windows
from scalewright.diagnose.collectives import Matched
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.kernels import by_kind, occupancies, short_name, top_kernels
from scalewright.diagnose.layers import layers
from scalewright.diagnose.memory.traced import traced_memory
from scalewright.diagnose.phases import PHASES, phases
from scalewright.diagnose.pipeline_steps import dump
from scalewright.diagnose.ranks import Rank, Ranks, unlaunched
from scalewright.diagnose.roofs import roofs
from scalewright.diagnose.traces.trace import CALL, OTHER, kind_of
from scalewright.diagnose.verdict import name
from scalewright.diagnose.verdicts import bound_by, verdicts

NOTICED = 1.1  # times a step without the recorder
PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")


def answer(ranks: Ranks) -> dict[str, object]:
    """Everything about the ranks' traces, as plain data."""
    per_rank = [_rank(rank) for rank in ranks.ranks]
    causes = verdicts(ranks)
    return {
        "kind": "trace",
        "ranks": [rank.trace.rank for rank in ranks.ranks],
        "device": _device(ranks.ranks[0]),
        "window_s": ranks.window / 1e9,
        "steps": _steps(ranks.ranks[0]),
        "recording": ranks.recording.dump() if ranks.recording else None,
        "breakdown_pct": _means(per_rank, "breakdown_pct", PARTS),
        "per_rank": per_rank,
        "communication": _communication(ranks),
        "pipeline": dump(ranks.pipeline) if ranks.pipeline else None,
        "phases_pct": _phases(per_rank),
        "layers": layers(ranks.ranks[0]),
        "idle_causes_pct": _means(per_rank, "idle_causes_pct", CAUSES),
        "kernel_kinds_pct": by_kind(ranks.ranks[0].trace),
        "top_kernels": [
            {"name": k.name, "short_name": short_name(k.name), "kind": k.kind, "count": k.count,
             "total_s": k.total / 1e9, "mean_us": k.mean / 1e3, "share_pct": k.share_pct}
            for k in top_kernels(ranks.ranks[0].trace)
        ],
        "roofs": roofs(ranks.ranks[0]),
        "occupancy": occupancies(ranks.ranks[0].trace),
        "memory": _memory(ranks),
        "bound_by": causes[0].cause if causes else bound_by(ranks),
        "verdicts": [verdict.dump() for verdict in causes],
        "stragglers": [
            {"rank": ranks.ranks[s.rank].trace.rank, "name": name(ranks, s.rank), "why": s.cause,
             "last_in": s.last_in, "of": s.of, "imposed_s": s.imposed / 1e9}
            for s in ranks.stragglers
        ],
        "unclassified": _unclassified(ranks),
        "warnings": ranks.warnings + _doubts(ranks),
    }  # fmt: skip


def _rank(rank: Rank) -> dict[str, object]:
    window, parts = max(rank.breakdown.window, 1), phases(rank)
    return {
        "rank": rank.trace.rank,
        "file": rank.trace.path.name,
        "window_s": rank.breakdown.window / 1e9,
        "breakdown_pct": rank.breakdown.percent(),
        "overlap_pct": rank.breakdown.overlap_pct,
        "idle_causes_pct": {cause: 100 * part / window for cause, part in rank.idle.totals().items()},
        "data_pct_of_steps": 100 * rank.data / rank.stepped if rank.stepped else None,
        "phases_pct": {name: 100 * part / window for name, part in parts.items()} if parts else None,
    }


def _device(rank: Rank) -> str | None:
    devices = rank.trace.about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    return str(first["name"]) if isinstance(first, dict) and "name" in first else None


def _steps(rank: Rank) -> list[dict[str, object]]:
    parts = breakdown_of_windows(rank.activity, rank.steps.start, rank.steps.end)
    return [
        {"step": number, "step_time_s": part.window / 1e9, "breakdown_pct": part.percent()}
        for number, part in zip(rank.steps.number.tolist(), parts, strict=True)
    ]


def _communication(ranks: Ranks) -> dict[str, object]:
    total = sum(rank.breakdown.communication for rank in ranks.ranks)
    exposed = sum(rank.breakdown.exposed_communication for rank in ranks.ranks)
    groups = [
        {"group": group.group, "ranks": [ranks.ranks[index].trace.rank for index in group.ranks],
         "collectives": len(group), "transfer_s": int(group.transfer.sum()) / 1e9,
         "wait_s": [int(wait) / 1e9 for wait in group.wait.sum(axis=0)],
         "exposed_s": [_exposed(ranks, group, column) / 1e9 for column in range(len(group.ranks))]}
        for group in ranks.matched
    ]  # fmt: skip
    return {
        "overlap_pct": 100 * (1 - exposed / total) if total else None,
        "total_s": total / max(len(ranks.ranks), 1) / 1e9,
        "clock_error_us": float(ranks.clocks.error.max(initial=0)) / 1e3,
        "per_group": groups,
        "bandwidths": [bandwidth.dump() for bandwidth in ranks.bandwidths],
    }


def _exposed(ranks: Ranks, group: Matched, column: int) -> int:
    """Nanoseconds of a rank's collectives of a group beside no computation, its waiting included."""
    spans = intervals.union(group.start[:, column], group.end[:, column])
    return intervals.length(intervals.minus(spans, ranks.ranks[group.ranks[column]].activity.compute))


def _unclassified(ranks: Ranks) -> list[dict[str, object]]:
    """Kernels of the first rank whose kind the name doesn't tell, with at least 1% of the kernels' time."""
    kernels = top_kernels(ranks.ranks[0].trace, most=1_000_000)
    return [{"name": k.name, "share_pct": k.share_pct} for k in kernels
            if k.share_pct >= 1 and kind_of(k.name) == OTHER]  # fmt: skip


def _doubts(ranks: Ranks) -> list[str]:
    """What the traces can't tell, and which figures that touches."""
    lines = []
    for rank in ranks.ranks:
        if count := unlaunched(rank.trace):
            lines.append(
                f"{rank.trace.path.name}: {count:,} GPU events have no launch in it: the idle time before "
                "them counts as other"
            )
    world = ranks.ranks[0].trace.about.get("distributedInfo")
    size = world.get("world_size") if isinstance(world, dict) else None
    if isinstance(size, int) and size > len(ranks.ranks):
        lines.append(f"traces of {len(ranks.ranks)} of {size} ranks: waiting for the others counts as communication")
    if (cost := ranks.recording) is not None and cost.recorded > NOTICED * cost.step:
        lines.append(
            f"recording made a step {cost.recorded / cost.step:.1f} times as long: gains are of "
            f"{1e3 * cost.step:,.1f} ms, without it"
        )
    if not ranks.ranks[0].trace.on_gpu.any():
        lines.append("no GPU activity: operators of the CPU are counted instead")
    elif not any(np.any(rank.trace.category == CALL) for rank in ranks.ranks):
        lines.append("no calls of the runtime: idle time has no cause that could be told")
    return lines


def _memory(ranks: Ranks) -> dict[str, object] | None:
    """Memory of the rank that needed most, where it was recorded."""
    recorded = [
        memory | {"rank": rank.trace.rank} for rank in ranks.ranks if (memory := traced_memory(rank.trace)) is not None
    ]
    return max(recorded, key=lambda memory: int(memory["peak_bytes"]), default=None)


def _phases(per_rank: list[dict[str, object]]) -> dict[str, float] | None:
    """The mean of the ranks whose trace names phases."""
    named = [rank for rank in per_rank if rank["phases_pct"]]
    return _means(named, "phases_pct", (*PHASES, "idle")) if named else None


def _means(rows: Sequence[Mapping[str, Any]], key: str, names: tuple[str, ...]) -> dict[str, float]:
    return {part: float(np.mean([row[key][part] for row in rows])) for part in names}
