"""Where the time of a run went, by its folder: the same shares as a simulation's, from what it wrote down.

    events.jsonl    start ... save ... fault │ restart │ resume ... finish     wall clock, and seconds of saves
    metrics.jsonl   step_time_s of each step that counted                      work that was done once

    time    ├ life 1: begins, steps, saves ┤ found, restarted ├ life 2: begins, steps ...

work        steps that a later life did again: from the last event of one life back to the step that the next begins at
restart     from a life's last event to the start of the next; and from its start to its first step, as that took longer
other       what is left: validation, waiting for data, and whatever wrote nothing

The end of a life that wrote no line (a node that vanished) isn't known: what lies between its last event and the next
start is counted as a restart, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from scalewright.goodput.simulate import LOST
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import UserError

Event = Mapping[str, Any]
BEGINS = ("start", "resume")
ENDS = ("fault", "stop", "finish")


@dataclass(frozen=True)
class Ledger:
    """A run's time in seconds, by what took it; `notes` has what the folder doesn't tell."""

    wall_s: float
    work_s: float
    lost_s: Mapping[str, float]
    stops: int
    saves: Sequence[float]  # seconds of each
    step_s: float | None  # median
    devices: int | None
    notes: tuple[str, ...] = ()

    def dump(self) -> dict[str, object]:
        """The keys of `ledger` in `goodput --json`."""
        wall = max(self.wall_s, 1e-9)
        return {
            "goodput": self.work_s / wall, "wall_s": self.wall_s, "work_s": self.work_s, "failures": self.stops,
            "lost": {name: seconds / wall for name, seconds in self.lost_s.items()}, "saves": len(self.saves),
            "save_s": median(self.saves) if self.saves else None, "step_time_s": self.step_s,
            "devices": self.devices, "notes": list(self.notes),
        }  # fmt: skip


def read_ledger(folder: Path, asynchronous: bool = False) -> Ledger:
    """The ledger of a run's folder. Raises UserError where its events don't tell a start and a later moment.

    `asynchronous`: its saves' seconds are those until they were written, while the run went on.
    """
    if not folder.is_dir():
        raise UserError("no such run folder", str(folder), "give the out_dir of a run")
    events = [event for event in read_jsonl(folder / "events.jsonl") if _number(event.get("time")) is not None]
    events.sort(key=lambda event: float(event["time"]))
    first = next((at for at, event in enumerate(events) if event.get("kind") in BEGINS), None)
    if first is None:
        how = "give a folder that `scalewright train` wrote, or --devices N to simulate one"
        raise UserError("events.jsonl has no start of a run", str(folder), how)
    events = events[first:]
    seconds = _step_seconds(folder)
    lives = _lives(events)
    wall = float(events[-1]["time"]) - float(events[0]["time"])
    saves = [
        value for event in events if event.get("kind") == "save" if (value := _number(event.get("seconds"))) is not None
    ]
    work = sum(seconds.values())
    if wall <= 0 or not seconds:
        raise UserError("the run has no steps yet", str(folder), "look again once metrics.jsonl has some")
    usual = median(seconds.values())
    lost = dict.fromkeys(LOST, 0.0)
    notes: list[str] = []
    if asynchronous:
        notes.append("saves were asynchronous: what they stopped of the run is in other")
    else:
        lost["save"] = sum(saves)
    for life, later in pairwise(lives):
        again = max(_step(life[-1]) - _step(later[0]), 0)
        lost["work"] += again * usual
        lost["restart"] += float(later[0]["time"]) - float(life[-1]["time"])
        if not any(event.get("kind") in ENDS for event in life):
            notes.append(
                f"a life that ended after step {_step(life[-1])} wrote no reason: its last steps count as restart"
            )
    budget = max(wall - work - sum(lost.values()), 0.0)
    starting = min(sum(_first_step(life, usual) for life in lives[1:]), budget)
    lost["restart"] += starting
    lost["other"] = budget - starting
    world = next((event["world"] for event in reversed(events) if type(event.get("world")) is int), None)
    stops = sum(not any(event.get("kind") in ("stop", "finish") for event in life) for life in lives[:-1])
    stops += lives[-1][-1].get("kind") == "fault"
    scale = min(1.0, wall / max(work + sum(lost.values()), 1e-9))  # clocks that disagree
    if scale < 0.999:
        notes.append("steps and saves add up to more than the time between the first event and the last")
    lost = {name: value * scale for name, value in lost.items()}
    return Ledger(wall, work * scale, lost, stops, saves, usual, world, tuple(notes))


def _step_seconds(folder: Path) -> dict[int, float]:
    """Seconds of each step that counted, the last line of each."""
    rows = read_jsonl(folder / "metrics.jsonl")
    found = {}
    for row in rows:
        step, seconds = row.get("step"), _number(row.get("step_time_s"))
        if row.get("kind") == "train" and type(step) is int and seconds is not None and seconds >= 0:
            found[step] = seconds
    return found


def _lives(events: Sequence[Event]) -> list[list[Event]]:
    """The events from each start or resume to the next."""
    lives: list[list[Event]] = []
    for event in events:
        if event.get("kind") in BEGINS:
            lives.append([])
        lives[-1].append(event)
    return lives


def _first_step(life: Sequence[Event], usual: float) -> float:
    """Seconds from a life's start to the end of its first step, less a step, where an event tells it."""
    measured = next((event for event in life if event.get("kind") in ("measured", "save")), None)
    if measured is None:
        return 0.0
    steps = _step(measured) - _step(life[0])
    return max(float(measured["time"]) - float(life[0]["time"]) - steps * usual, 0.0)


def _step(event: Event) -> int:
    step = event.get("step")
    return step if type(step) is int else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
