"""The pipeline schedule as data: the trainer runs it, the planner costs it, the report draws it.

    schedule("1f1b", ranks=4, virtual_stages=1, micro_batches=8)     every rank's ordered actions
    check_schedule(layout)                                           raises for impossible sizes
    simulate(plan, StageCost(forward, input, weight), send)          start and end of every action
    peak_activations(plan)    bubble_fraction("1f1b", 4, 1, 8)       memory and waits
    draw(plan)

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .

The parts are files in `schedules/`; this file exports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalewright.spec.errors import UserError
from scalewright.spec.schedules.action import COMPUTE, RECEIVES, SENDS, Action
from scalewright.spec.schedules.bubble import bubble_fraction, busy_time, closed_form, idle_time
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.check import check_sizes, find_problem
from scalewright.spec.schedules.clock import Cost, Deadlock, StageCost, Timing, simulate
from scalewright.spec.schedules.kinds import KINDS, Kind, find_kind, stage_ranks
from scalewright.spec.schedules.memory import peak_activations
from scalewright.spec.schedules.picture import draw
from scalewright.spec.schedules.schedule import Schedule

if TYPE_CHECKING:  # so that the layout's own checks can call check_schedule
    from scalewright.spec.layout import Layout

__all__ = [
    "COMPUTE",
    "KINDS",
    "RECEIVES",
    "SENDS",
    "Action",
    "Cost",
    "Deadlock",
    "Kind",
    "Schedule",
    "StageCost",
    "Timing",
    "bubble_fraction",
    "busy_time",
    "check_schedule",
    "check_sizes",
    "closed_form",
    "draw",
    "find_kind",
    "idle_time",
    "layout_schedule",
    "peak_activations",
    "schedule",
    "simulate",
    "stage_ranks",
]


def check_schedule(layout: Layout) -> None:
    """Raises UserError when a layout's schedule doesn't exist at its sizes."""
    problem = find_problem(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation)
    if problem is None:
        return
    how = problem.how
    if not how:
        how = f"use global_batch {problem.micro_batches * layout.micro_batch * layout.dp}"
        if layout.micro_batch > 1 or layout.dp > 1:
            how += f" ({problem.micro_batches} x micro_batch {layout.micro_batch} x dp {layout.dp})"
    raise UserError(problem.what, "layout", how)


def layout_schedule(layout: Layout) -> Schedule:
    """The schedule of one step of a layout; raises UserError as `check_schedule` does."""
    check_schedule(layout)
    return schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation)
