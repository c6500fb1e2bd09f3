"""The answer of `diagnose` for a table of a pipeline's operations, with the keys of a trace.

window       the steps one after the other                    per rank: a worker's parts, which add up
slowdown     S, by stage, replica and operation, the worst worker: slowdown.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.breakdown import Activity, breakdown, breakdown_of_windows
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.operations.slowdown import Slowdown, slowdown, what_if
from scalewright.diagnose.operations.table import COMMUNICATES, KINDS, Table, read_table
from scalewright.diagnose.operations.verdicts import verdicts, worker
from scalewright.spec.errors import UserError

PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")


def operations_answer(files: Sequence[Path]) -> dict[str, object]:
    """Everything about a table; raises UserError for several, which are several jobs."""
    if len(files) > 1:
        raise UserError(f"{len(files)} tables of operations", str(files[0]), "give one: each is a job")
    table = read_table(files[0])
    asked = what_if(table)
    slow = slowdown(asked)
    causes = verdicts(asked, slow)
    activities = [_activity(table, stage, replica) for stage, replica in _workers(table)]
    per_rank = [_rank(table, pair, what) for pair, what in zip(_workers(table), activities, strict=True)]
    stragglers = slow.workers if any(cause.cause == "straggler" for cause in causes) else []
    return {
        "kind": "trace",
        "ranks": [row["rank"] for row in per_rank],
        "device": None,
        "window_s": float(table.step_s.sum()),
        "steps": _steps(table, activities),
        "breakdown_pct": _means(per_rank, "breakdown_pct", PARTS),
        "per_rank": per_rank,
        "communication": {
            "overlap_pct": None,
            "total_s": float(np.mean([intervals.length(what.communication) for what in activities])) / 1e9,
            "clock_error_us": 0.0,
            "per_group": [],
        },
        "idle_causes_pct": _means(per_rank, "idle_causes_pct", CAUSES),
        "kernel_kinds_pct": {},
        "top_kernels": [],
        "slowdown": _slowdown(table, slow),
        "bound_by": causes[0].cause if causes else _bound_by(slow),
        "verdicts": [cause.dump() for cause in causes],
        "stragglers": [
            {"rank": _rank_of(table, pair), "name": worker(table, *pair), "why": "compute",
             "imposed_s": (slow.needed_s - slow.usual_s) * slow.by_workers * len(table.steps)}
            for pair in stragglers
        ],
        "unclassified": [{"name": name, "share_pct": None} for name in sorted(
            {operation.name for operation in table.operations if operation.name not in KINDS})],
        "warnings": table.warnings,
    }  # fmt: skip


def _slowdown(table: Table, slow: Slowdown) -> dict[str, object]:
    return {
        "factor": slow.factor,
        "step_time_s": {"recorded": slow.recorded_s, "without_gaps": slow.needed_s, "usual": slow.usual_s},
        "by_stage": {str(stage): factor for stage, factor in slow.by_stage.items()},
        "by_replica": {str(replica): factor for replica, factor in slow.by_replica.items()},
        "by_operation": slow.by_name,
        "by_worst_workers_pct": 100 * slow.by_workers,
        "by_last_stage_pct": 100 * slow.by_last_stage,
        "workers": [
            {
                "rank": _rank_of(table, (stage, replica)),
                "stage": stage,
                "replica": replica,
                "factor": min(slow.by_stage[stage], slow.by_replica[replica]),
            }
            for stage, replica in _workers(table)
        ],
    }


def _bound_by(slow: Slowdown) -> str:
    """One line for a job without a cause above its threshold."""
    name, factor = max(slow.by_name.items(), key=lambda item: item[1])
    if slow.factor < 1.02:
        return "no straggler: every worker and stage is as usual"
    return f"{name}, which differs over workers and steps: {100 * (factor - 1):.0f}% of a step"


def _workers(table: Table) -> list[tuple[int, int]]:
    return [(stage, replica) for replica in table.replicas for stage in table.stages]


def _rank_of(table: Table, pair: tuple[int, int]) -> int:
    return int(table.ranks[table.stages.index(pair[0]), table.replicas.index(pair[1])])


def _activity(table: Table, stage: int, replica: int) -> Activity:
    """A worker's intervals, in nanoseconds, the steps laid one after the other."""
    begun = table.start.min(axis=(0, 2))
    laid = np.concatenate(([0.0], np.cumsum(table.step_s)))[:-1] - begun
    place = table.replicas.index(replica)

    def rows(communicates: bool) -> np.ndarray:
        mask = [operation.stage == stage and (operation.name in COMMUNICATES) == communicates
                for operation in table.operations]  # fmt: skip
        start, end = (
            np.rint(1e9 * (times[mask, :, place] + laid)).astype(np.int64).ravel() for times in (table.start, table.end)
        )
        return intervals.union(start, end)

    whole = round(1e9 * float(table.step_s.sum()))
    return Activity(rows(False), rows(True), intervals.EMPTY, 0, whole)


def _rank(table: Table, pair: tuple[int, int], what: Activity) -> dict[str, object]:
    parts = breakdown(what)
    shares = parts.percent()
    return {
        "rank": _rank_of(table, pair),
        "file": worker(table, *pair),
        "window_s": parts.window / 1e9,
        "breakdown_pct": shares,
        "overlap_pct": parts.overlap_pct,
        "idle_causes_pct": {cause: shares["idle"] if cause == "other" else 0.0 for cause in CAUSES},
        "data_pct_of_steps": None,
    }


def _steps(table: Table, activities: Sequence[Activity]) -> list[dict[str, object]]:
    """Each step's seconds, and its parts over all workers."""
    end = np.rint(1e9 * np.cumsum(table.step_s)).astype(np.int64)
    start = np.concatenate(([0], end[:-1]))
    parts = [breakdown_of_windows(what, start, end) for what in activities]
    return [
        {"step": step, "step_time_s": float(table.step_s[index]),
         "breakdown_pct": _means([{"breakdown_pct": rank[index].percent()} for rank in parts],
                                 "breakdown_pct", PARTS)}
        for index, step in enumerate(table.steps)
    ]  # fmt: skip


def _means(rows: Sequence[Mapping[str, Any]], key: str, names: tuple[str, ...]) -> dict[str, float]:
    return {part: float(np.mean([row[key][part] for row in rows])) for part in names}
