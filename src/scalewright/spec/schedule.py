"""The pipeline schedule as data: the trainer runs it, the planner costs it, the report draws it.

    schedule("1f1b", ranks=4, virtual_stages=1, micro_batches=8)     every rank's ordered actions
    check_schedule(layout)                                           raises for impossible sizes
    simulate(plan, StageCost(forward, input, weight), send)          start and end of every action
    peak_activations(plan)    bubble_fraction("1f1b", 4, 1, 8)       memory and waits
    draw(plan)                                                       a row for every rank, time to the right

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .

F forward, B whole backward, I and W its input and weight parts; then the micro-batch, and a letter for the
chunk where a rank has several (a: the stage nearest to the model's start). A dot is a wait.

The parts are files in `schedules/`; this file exports them.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

from scalewright.spec.errors import UserError
from scalewright.spec.schedules.action import COMPUTE, RECEIVES, SENDS, Action
from scalewright.spec.schedules.bubble import bubble_fraction, busy_time, closed_form, idle_time, peak_activations
from scalewright.spec.schedules.build import check_sizes, find_problem, schedule
from scalewright.spec.schedules.clock import Cost, Deadlock, StageCost, Timing, simulate
from scalewright.spec.schedules.kinds import KINDS, Kind, find_kind, stage_ranks
from scalewright.spec.schedules.schedule import Schedule

if TYPE_CHECKING:  # so that the layout's own checks can call check_schedule
    from scalewright.spec.layout import Layout

__all__ = [
    "COMPUTE", "KINDS", "RECEIVES", "SENDS", "Action", "Cost", "Deadlock", "Kind", "Schedule", "StageCost", "Timing",
    "bubble_fraction", "busy_time", "check_schedule", "check_sizes", "closed_form", "draw", "find_kind", "idle_time",
    "layout_schedule", "peak_activations", "schedule", "simulate", "stage_ranks",
]  # fmt: skip


def check_schedule(layout: Layout) -> None:
    """Raises UserError when a layout's schedule doesn't exist at its sizes."""
    if problem := find_problem(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation):
        how = f"use global_batch {problem.micro_batches * layout.micro_batch * layout.dp}"
        if layout.micro_batch > 1 or layout.dp > 1:
            how += f" ({problem.micro_batches} x micro_batch {layout.micro_batch} x dp {layout.dp})"
        raise UserError(problem.what, "layout", problem.how or how)


def layout_schedule(layout: Layout) -> Schedule:
    """The schedule of one step of a layout; raises UserError as `check_schedule` does."""
    check_schedule(layout)
    return schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation)


_LETTER = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}


def draw(schedule: Schedule) -> str:
    """The picture of a schedule whose three parts take one unit each, and whose messages take none."""
    timing = simulate(schedule, StageCost(1, 1, 1))
    labels = [_label(schedule, action) for rank in range(schedule.ranks) for action in schedule.compute(rank)]
    width = max(len(label) for label in labels) + 1
    name = len(f"rank {schedule.ranks - 1}")
    rows = []
    for rank, (actions, spans) in enumerate(zip(schedule.actions, timing.spans, strict=True)):
        cells: list[str] = []
        now = 0
        for action, (start, end) in zip(actions, spans, strict=True):
            if action.kind in COMPUTE:
                units = round(end - start)
                label = _label(schedule, action).ljust(width * units - 1, "-" if units > 1 else " ")
                cells += [*[".".ljust(width)] * (round(start) - now), label + " "]
                now = round(end)
        cells += [".".ljust(width)] * (round(timing.makespan) - now)
        rows.append(f"{f'rank {rank}':<{name}} | {''.join(cells).rstrip()}")
    return "\n".join(rows)


def _label(schedule: Schedule, action: Action) -> str:
    chunk = action.stage // schedule.ranks
    letter = ascii_lowercase[chunk] if chunk < 26 else f".{chunk}"
    return f"{_LETTER[action.kind]}{action.micro}{letter if schedule.virtual_stages > 1 else ''}"
