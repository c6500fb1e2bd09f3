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
from scalewright.diagnose.breakdown import PARTS, breakdown_of_windows
from scalewright.diagnose.collectives import Matched
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.kernels import by_kind, occupancies, short_name, top_kernels
from scalewright.diagnose.phases import PHASES, layers, phases
from scalewright.diagnose.pipeline_steps import dump
from scalewright.diagnose.ranks import Rank, Ranks, unlaunched
from scalewright.diagnose.roofs import roofs
from scalewright.diagnose.traces.kinds import OTHER
from scalewright.diagnose.traces.trace import CALL
from scalewright.diagnose.verdict import name
from scalewright.diagnose.verdicts import bound_by, verdicts

NOTICED = 1.1  # times a step without the recorder
TOP = 20  # kernels


def answer(ranks: Ranks) -> dict[str, object]:
    """Everything about the ranks' traces, as plain data."""
    first, per_rank = ranks.ranks[0], [_rank(rank) for rank in ranks.ranks]
    named = [row for row in per_rank if row["phases_pct"]]
    causes = verdicts(ranks)
    kernels = top_kernels(first.trace, most=1_000_000)
    steps = breakdown_of_windows(first.activity, first.steps.start, first.steps.end)
    return {
        "kind": "trace",
        "ranks": [rank.trace.rank for rank in ranks.ranks],
        "device": str(first.trace.device["name"]) if "name" in first.trace.device else None,
        "window_s": ranks.window / 1e9,
        "steps": [
            {"step": number, "step_time_s": part.window / 1e9, "breakdown_pct": part.percent()}
            for number, part in zip(first.steps.number.tolist(), steps, strict=True)
        ],        "recording": ranks.recording.dump() if ranks.recording else None,
        "breakdown_pct": means(per_rank, "breakdown_pct", PARTS),
        "per_rank": per_rank,
        "communication": _communication(ranks),
        "pipeline": dump(ranks.pipeline) if ranks.pipeline else None,
        "phases_pct": means(named, "phases_pct", (*PHASES, "idle")) if named else None,
        "layers": layers(first),
        "idle_causes_pct": means(per_rank, "idle_causes_pct", CAUSES),
        "kernel_kinds_pct": by_kind(first.trace),
        "top_kernels": [
            {"name": k.name, "short_name": short_name(k.name), "kind": k.kind, "count": k.count,
             "total_s": k.total / 1e9, "mean_us": k.total / k.count / 1e3, "share_pct": k.share_pct}
            for k in kernels[:TOP]
        ],
        "roofs": roofs(first),
        "occupancy": occupancies(first.trace),
        "memory": _memory(ranks) if any(rank.trace.memory for rank in ranks.ranks) else None,
        "bound_by": causes[0].cause if causes else bound_by(ranks),
        "verdicts": [verdict.dump() for verdict in causes],
        "stragglers": [
            {"rank": ranks.ranks[s.rank].trace.rank, "name": name(ranks, s.rank), "why": s.cause,
             "last_in": s.last_in, "of": s.of, "imposed_s": s.imposed / 1e9}
            for s in ranks.stragglers
        ],
        "unclassified": [
            {"name": k.name, "share_pct": k.share_pct} for k in kernels if k.share_pct >= 1 and k.kind == OTHER
        ],
        "warnings": ranks.warnings + _doubts(ranks),
    }  # fmt: skip


def _rank(rank: Rank) -> dict[str, object]:
    window, parts = max(rank.breakdown.window, 1), phases(rank)
    return {
        "rank": rank.trace.rank, "file": rank.trace.path.name, "window_s": rank.breakdown.window / 1e9,
        "breakdown_pct": rank.breakdown.percent(), "overlap_pct": rank.breakdown.overlap_pct,
        "idle_causes_pct": {cause: 100 * part / window for cause, part in rank.idle.totals().items()},
        "data_pct_of_steps": 100 * rank.data / rank.stepped if rank.stepped else None,
        "phases_pct": {name: 100 * part / window for name, part in parts.items()} if parts else None,
    }  # fmt: skip


def _memory(ranks: Ranks) -> dict[str, object] | None:
    """That of the rank with the highest peak."""
    from scalewright.diagnose.memory.traced import traced_memory

    recorded = [(*memory, rank.trace.rank) for rank in ranks.ranks if (memory := traced_memory(rank.trace))]
    largest = max(recorded, key=lambda of_rank: of_rank[0], default=None)  # peak, memory, rank
    return largest[1] | {"rank": largest[2]} if largest else None


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


def _doubts(ranks: Ranks) -> list[str]:
    """What the traces can't tell, and which figures that touches."""
    lines = []
    for rank in ranks.ranks:
        if count := unlaunched(rank.trace):
            lines.append(
                f"{rank.trace.path.name}: {count:,} GPU events have no launch in it: the idle time before them counts "
                "as other"
            )
    size = ranks.ranks[0].trace.distributed.get("world_size")
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


def means(rows: Sequence[Mapping[str, Any]], key: str, names: tuple[str, ...]) -> dict[str, float]:
    """The mean over rows of each part of what stands under a key."""
    return {part: float(np.mean([row[key][part] for row in rows])) for part in names}
