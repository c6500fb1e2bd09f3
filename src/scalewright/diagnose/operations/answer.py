"""The answer of `diagnose` for a table of a pipeline's operations, with the keys of a trace.

The window is the steps one after the other; a rank's parts are a worker's; `slowdown` is that of slowdown.py. Causes of
the slowdown come with what the step would take without them:

    straggler               a worker explains half of the slowdown
    stage imbalance         a stage computes longer than the others, on all replicas: its layers, or the loss
    uneven micro-batches    forward and backward of a micro-batch are long together: its sequences differ

The first two thresholds and the correlation are the paper's (Lin et al., OSDI 2025, sections 5.1 to 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.answer import means
from scalewright.diagnose.breakdown import PARTS, Activity, breakdown, breakdown_of_windows
from scalewright.diagnose.idle import CAUSES
from scalewright.diagnose.operations.slowdown import Slowdown, WhatIf, of_workers, slowdown, what_if
from scalewright.diagnose.operations.table import BACKWARD, COMMUNICATES, FORWARD, KINDS, Table, read_table
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.diagnose.verdicts import LEAST_GAIN
from scalewright.spec.errors import UserError


def operations_answer(files: Sequence[Path]) -> dict[str, object]:
    """Everything about a table; raises UserError for several, which are several jobs."""
    if len(files) > 1:
        raise UserError(f"{len(files)} tables of operations", str(files[0]), "give one: each is a job")
    table = read_table(files[0])
    asked = what_if(table)
    slow = slowdown(asked)
    causes = verdicts(asked, slow)
    workers = [(stage, replica) for replica in table.replicas for stage in table.stages]
    activities = [_activity(table, stage, replica) for stage, replica in workers]
    per_rank = [_rank(table, pair, what) for pair, what in zip(workers, activities, strict=True)]
    stragglers = slow.workers if any(cause.cause == "straggler" for cause in causes) else []
    return {
        "kind": "trace",
        "ranks": [row["rank"] for row in per_rank],
        "device": None,
        "window_s": float(table.step_s.sum()),
        "steps": _steps(table, activities),
        "breakdown_pct": means(per_rank, "breakdown_pct", PARTS),
        "per_rank": per_rank,
        "communication": {
            "overlap_pct": None,
            "total_s": float(np.mean([intervals.length(what.communication) for what in activities])) / 1e9,
            "clock_error_us": 0.0,
            "per_group": [],
        },
        "idle_causes_pct": means(per_rank, "idle_causes_pct", CAUSES),
        "kernel_kinds_pct": {},
        "top_kernels": [],
        "slowdown": _slowdown(table, slow, workers),
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


def _slowdown(table: Table, slow: Slowdown, workers: Sequence[tuple[int, int]]) -> dict[str, object]:
    return {
        "factor": slow.factor,
        "step_time_s": {"recorded": slow.recorded_s, "without_gaps": slow.needed_s, "usual": slow.usual_s},
        "by_stage": {str(stage): factor for stage, factor in slow.by_stage.items()},
        "by_replica": {str(replica): factor for replica, factor in slow.by_replica.items()},
        "by_operation": slow.by_name,
        "by_worst_workers_pct": 100 * slow.by_workers,
        "by_last_stage_pct": 100 * slow.by_last_stage,
        "workers": [
            {"rank": _rank_of(table, (stage, replica)), "stage": stage, "replica": replica,
             "factor": min(slow.by_stage[stage], slow.by_replica[replica])}
            for stage, replica in workers
        ],
    }  # fmt: skip


def _bound_by(slow: Slowdown) -> str:
    """One line for a job without a cause above its threshold."""
    name, factor = max(slow.by_name.items(), key=lambda item: item[1])
    if slow.factor < 1.02:
        return "no straggler: every worker and stage is as usual"
    return f"{name}, which differs over workers and steps: {100 * (factor - 1):.0f}% of a step"


def _rank_of(table: Table, pair: tuple[int, int]) -> int:
    return int(table.ranks[table.stages.index(pair[0]), table.replicas.index(pair[1])])


def _activity(table: Table, stage: int, replica: int) -> Activity:
    """A worker's intervals, in nanoseconds, the steps laid one after the other."""
    begun = table.start.min(axis=(0, 2))
    laid = np.concatenate(([0.0], np.cumsum(table.step_s)))[:-1] - begun
    place = table.replicas.index(replica)
    start, end = (np.rint(1e9 * (times[:, :, place] + laid)).astype(np.int64) for times in (table.start, table.end))
    mine = np.array([operation.stage == stage for operation in table.operations])
    talks = np.array([operation.name in COMMUNICATES for operation in table.operations])
    computes, communicates = (
        intervals.union(start[rows].ravel(), end[rows].ravel()) for rows in (mine & ~talks, mine & talks)
    )
    return Activity(computes, communicates, intervals.EMPTY, 0, round(1e9 * float(table.step_s.sum())))


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
    rows = []
    for index, (step, seconds) in enumerate(zip(table.steps, table.step_s.tolist(), strict=True)):
        shares = means([{"share": of_rank[index].percent()} for of_rank in parts], "share", PARTS)
        rows.append({"step": step, "step_time_s": seconds, "breakdown_pct": shares})
    return rows


HALF = 0.5  # of the slowdown: what a cause must explain
CORRELATED = 0.9
USUALLY = 0.75  # of what an even split would gain: layers and sequences come in pieces (a judgement)
NAMES = {FORWARD: "forward", BACKWARD: "backward"}


def verdicts(asked: WhatIf, slow: Slowdown) -> list[Verdict]:
    """The causes above their thresholds, the largest expected gain first."""
    needs = asked.needs
    causes = []
    worker = _workers_verdicts(asked, slow)
    if worker is not None:  # its stage and its micro-batches aren't blamed for it, too
        needs = np.where(of_workers(asked, slow.workers), asked.usual, needs)
        causes.append(worker)
    causes += [cause for cause in (_stage(asked, slow, needs), _micro_batches(asked, slow, needs)) if cause]
    return sorted(causes, key=lambda verdict: -verdict.usual_gain)


def _workers_verdicts(asked: WhatIf, slow: Slowdown) -> Verdict | None:
    without = asked.usual_in(of_workers(asked, slow.workers))
    gain = 100 * (1 - without / slow.needed_s) if slow.needed_s else 0.0
    if slow.by_workers < HALF or gain < LEAST_GAIN:
        return None
    names = [worker(asked.table, *pair) for pair in slow.workers]
    mask = of_workers(asked, slow.workers[:1])
    times = " and ".join(
        f"a {NAMES[name]} {mine:.3g} s (the others {usual:.3g})"
        for name in NAMES
        if (rows := asked.of_name(name)).any()
        for mine, usual in [(_mean(asked.needs, mask & rows), _mean(asked.needs, rows & ~mask))]
    )
    who = "it" if len(names) == 1 else f"the worst {len(names)}"
    evidence = [
        f"{names[0]} takes for {times}",
        f"without {who} a step would take {without:.3g} s instead of {slow.needed_s:.3g}",
    ]
    fix = f"look at {' and '.join(names[:4])}: clock, temperature and power, other processes, the network"
    most = max(100 * (1 - slow.usual_s / slow.needed_s), gain)
    return Verdict("straggler", evidence, fix, 0.9, Gain(gain * USUALLY, gain, most))


def _stage(asked: WhatIf, slow: Slowdown, needs: np.ndarray) -> Verdict | None:
    """A stage whose work is longer than the others': how the step would be with all stages' work equal."""
    table = asked.table
    even, work = needs.copy(), np.zeros(len(table.stages))
    for name in NAMES:
        rows = [_rows(table, stage, name) for stage in table.stages]
        mean = np.array([float(needs[of_stage].mean()) if of_stage else 0.0 for of_stage in rows])
        work += mean
        for of_stage, seconds in zip(rows, mean, strict=True):
            even[of_stage] *= mean.mean() / max(seconds, 1e-12)
    longest = int(np.argmax(work))
    before = asked.time(needs)
    gain = 100 * (before - asked.time(even)) / slow.needed_s
    lost = before - slow.usual_s
    if len(table.stages) < 2 or gain < LEAST_GAIN or 100 * lost < LEAST_GAIN * before:
        return None
    if (before - asked.time(np.where(asked.of_stage(table.stages[longest]), asked.usual, needs))) / lost < HALF:
        return None
    line = (
        f"stage {table.stages[longest]} computes {work[longest]:.3g} s for a micro-batch, the others "
        f"{np.delete(work, longest).mean():.3g} on average, on all replicas"
    )
    fix = "give it fewer layers" + (": it has the head and the loss, too" if longest == len(work) - 1 else "")
    return Verdict("stage imbalance", [line], fix, 0.8, Gain(gain / 2, gain * USUALLY, gain))


def _micro_batches(asked: WhatIf, slow: Slowdown, needs: np.ndarray) -> Verdict | None:
    """Micro-batches that differ: how the step would be with its work spread evenly over them."""
    table = asked.table
    even = needs.copy()
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for stage in table.stages:
        rows = {name: _by_micro_batch(table, stage, name) for name in NAMES}
        for mine in rows.values():
            if mine:
                even[[*mine.values()]] = needs[[*mine.values()]].mean(axis=(0, 2), keepdims=True)
        both = [key for key in rows[FORWARD] if key in rows[BACKWARD]]
        if len(both) > 2:
            a, b = (needs[[rows[name][key] for key in both]] for name in (FORWARD, BACKWARD))
            pairs.append(((a - a.mean(axis=0)).ravel(), (b - b.mean(axis=0)).ravel()))
    if not pairs:
        return None
    forward, backward = (np.concatenate(side) for side in zip(*pairs, strict=True))
    spread = float(np.sqrt((forward**2).sum() * (backward**2).sum()))
    correlation = float((forward * backward).sum()) / spread if spread > 0 else 0.0
    gain = 100 * (asked.time(needs) - asked.time(even)) / slow.needed_s
    if correlation < CORRELATED or gain < LEAST_GAIN:
        return None
    line = (
        f"a micro-batch that is slow forward is slow backward, on every worker (correlation {correlation:.2f}): its "
        "sequences are longer"
    )
    fix = (
        "spread sequences over micro-batches and replicas by their cost: attention grows with the square of a "
        "sequence's length, so that equal tokens aren't equal work"
    )
    return Verdict("uneven micro-batches", [line], fix, 0.8, Gain(gain / 2, gain * USUALLY, gain))


def worker(table: Table, stage: int, replica: int) -> str:
    """`rank 12 (stage 3 of replica 0)`."""
    return f"rank {_rank_of(table, (stage, replica))} (stage {stage} of replica {replica})"


def _rows(table: Table, stage: int, name: str) -> list[int]:
    return [row for row, some in enumerate(table.operations) if some.stage == stage and some.name == name]


def _by_micro_batch(table: Table, stage: int, name: str) -> dict[tuple[int, int], int]:
    """Rows of a stage's computes of a name, by chunk and micro-batch."""
    rows = ((row, table.operations[row]) for row in _rows(table, stage, name))
    return {(operation.chunk, operation.micro_batch): row for row, operation in rows}


def _mean(values: np.ndarray, mask: np.ndarray) -> float:
    return float(values[np.broadcast_to(mask, values.shape)].mean())
