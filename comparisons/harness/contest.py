"""Contestants train in turns, a few steps at a time, and are timed from outside.

    contestant.run(steps) -> losses       timed by the wall clock and by the CPU time of the whole process

All start from one set of weights and take the same samples in the same order with the same update, so their
losses agree: that is checked before any speed is believed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.facts import load_average
from harness.statistics import in_turns, paired_ratio, spread


class Contestant(Protocol):
    """Something that trains."""

    name: str
    precision: str  # what it computes in, in the field's words

    def run(self, steps: int) -> list[float]:
        """Trains some more steps; the losses that it has to tell of."""

    def close(self) -> None:
        """Frees what it holds."""


@dataclass
class Timed:
    """One contestant's segments."""

    precision: str
    wall_s: list[float] = field(default_factory=list)  # per step, one number a segment
    cpu_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """How long a contest is."""

    rounds: int = 5
    segment_s: float = 4.0  # a segment is as many steps as fit, at least `least`
    least: int = 2
    most: int = 50
    warm_up: int = 2


def contest(contestants: Sequence[Contestant], plan: Plan, tell: Callable[[str], None] = print) -> Contest:
    """Warms everyone up, then times them in turns."""
    people = {contestant.name: contestant for contestant in contestants}
    times = {contestant.name: Timed(contestant.precision) for contestant in contestants}
    pace: dict[str, float] = {}
    for name, each in people.items():
        times[name].losses += each.run(1)  # sets up lazily built state, so it's no measure of the pace
        start = time.perf_counter()
        times[name].losses += each.run(max(1, plan.warm_up - 1))
        pace[name] = (time.perf_counter() - start) / max(1, plan.warm_up - 1)
    steps = min(plan.most, max(plan.least, round(plan.segment_s / spread(list(pace.values())).median)))
    tell(f"{plan.rounds} rounds of {steps} steps by {len(people)} contestants")
    loads: list[Any] = []

    def run(name: str, number: int) -> None:
        timed = times[name]
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        timed.losses += people[name].run(steps)
        timed.wall_s.append((time.perf_counter() - wall) / steps)
        timed.cpu_s.append((time.process_time() - cpu) / steps)
        loads.append(load_average())

    in_turns(list(people), plan.rounds, run)
    return Contest(times, steps, plan, loads)


@dataclass(frozen=True)
class Contest:
    """What came of it."""

    times: dict[str, Timed]
    steps: int
    plan: Plan
    loads: list[Any]

    def ratio(self, slow: str, fast: str, clock: str = "wall_s") -> Any:
        """How many times faster `fast` is than `slow`, round by round."""
        return paired_ratio(getattr(self.times[slow], clock), getattr(self.times[fast], clock))

    def disagreement(self, reference: str) -> dict[str, float]:
        """The largest relative difference of each contestant's losses from the reference's, same steps."""
        wanted = self.times[reference].losses
        return {
            name: max(abs(a - b) / abs(b) for a, b in zip(timed.losses, wanted, strict=False))
            for name, timed in self.times.items()
            if timed.losses
        }

    def dump(self, tokens: int, ours: str) -> dict[str, Any]:
        """Plain data; `tokens` of one step."""
        found: dict[str, Any] = {}
        for name, timed in self.times.items():
            found[name] = {
                "precision": timed.precision,
                "step_s": spread(timed.wall_s).dump(),
                "cpu_s_per_step": spread(timed.cpu_s).dump(),
                "tokens_per_s": spread([tokens / s for s in timed.wall_s]).dump(),
                "tokens_per_cpu_s": spread([tokens / s for s in timed.cpu_s]).dump(),
                "ours_is_faster_by": self.ratio(name, ours).dump(),
                "ours_is_faster_by_cpu_time": self.ratio(name, ours, "cpu_s").dump(),
                "segments_wall_s": timed.wall_s,
                "segments_cpu_s": timed.cpu_s,
                "losses": timed.losses,
            }
        return {
            "rounds": self.plan.rounds,
            "steps_per_segment": self.steps,
            "warm_up_steps": self.plan.warm_up,
            "load_averages": self.loads,
            "contestants": found,
        }
