"""A schedule as text: a row for every rank, time to the right.

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .

F forward, B whole backward, I and W its input and weight parts; then the micro-batch, and a letter for the
chunk where a rank has several (a: the stage nearest to the model's start). A dot is a wait.
"""

from __future__ import annotations

from string import ascii_lowercase

from scalewright.spec.schedules.action import COMPUTE, Action
from scalewright.spec.schedules.clock import StageCost, simulate
from scalewright.spec.schedules.schedule import Schedule

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
                cells += [".".ljust(width)] * (round(start) - now)
                units = round(end - start)
                fill = "-" if units > 1 else " "
                cells.append(_label(schedule, action).ljust(width * units - 1, fill) + " ")
                now = round(end)
        cells += [".".ljust(width)] * (round(timing.makespan) - now)
        rows.append(f"{f'rank {rank}':<{name}} | {''.join(cells).rstrip()}")
    return "\n".join(rows)


def _label(schedule: Schedule, action: Action) -> str:
    chunk = action.stage // schedule.ranks
    letter = ascii_lowercase[chunk] if chunk < 26 else f".{chunk}"
    return f"{_LETTER[action.kind]}{action.micro}{letter if schedule.virtual_stages > 1 else ''}"
