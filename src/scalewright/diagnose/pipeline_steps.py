"""A pipeline's recorded steps (`traces/pipeline-step-*.json`, parallel/execute.py): bubble and stages' work.

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---      measured
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .       ideal: `simulate`, each action at its stage's median

The bubble is that of the rank that waits most. Measured, it has everything in it that the schedule's formula leaves
out: messages, uneven stages, the noise of the machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from scalewright.spec.common.untrusted import read_json
from scalewright.spec.errors import UserError
from scalewright.spec.schedule import COMPUTE, Action, Schedule, StageCost, bubble_fraction, schedule, simulate

BACKWARDS = ("backward", "backward_input", "backward_weight")
NAME = re.compile(r"^pipeline-step-\d{1,12}\.json$")


class Span(NamedTuple):
    """One computation: its action, and its start and end in seconds."""

    kind: str
    stage: int
    micro: int
    start: float
    end: float


@dataclass(frozen=True)
class PipelineStep:
    """A recorded step: its schedule, and every pipeline rank's computations."""

    plan: Schedule
    step: int
    ranks: tuple[tuple[Span, ...], ...]


def read_steps(paths: Sequence[Path]) -> tuple[list[PipelineStep], list[Path], list[Path]]:
    """Of some files the recorded steps of a pipeline in order, those that are broken, and the others."""
    read_of = {path: read(path) for path in sorted(path for path in paths if NAME.match(path.name))}
    steps = [step for step in read_of.values() if step is not None]
    alike = [step for step in steps if step.plan == steps[-1].plan]
    broken = [path for path, step in read_of.items() if step is None]
    return alike, broken, [path for path in paths if path not in read_of]


def read(path: Path) -> PipelineStep | None:
    """A recorded step; None when the file is broken, or holds another schedule than it names."""
    try:
        data = read_json(path)
        named = [data[key] for key in ("ranks", "virtual_stages", "micro_batches")]
        held = sum(map(len, data["actions"]))
        if any(type(number) is not int or number < 1 for number in named) or prod(named) > held:
            return None  # a larger schedule than there are actions
        plan = schedule(data["schedule"], data["ranks"], data["virtual_stages"], data["micro_batches"])
        computed = [[a for a in actions if a["kind"] in COMPUTE] for actions in data["actions"]]
        whole = [sorted(a[:3] for a in plan.compute(rank)) for rank in range(plan.ranks)]
        if whole != [sorted((a["kind"], a["stage"], a["micro"]) for a in actions) for actions in computed]:
            return None
        begin = min(float(a["start_s"]) for actions in computed for a in actions)
        ranks = tuple(tuple(_span(action, begin) for action in actions) for actions in computed)
        return PipelineStep(plan, int(data["step"]), ranks)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _span(action: Mapping[str, Any], begin: float) -> Span:
    start, end = (float(action[key]) - begin for key in ("start_s", "end_s"))
    return Span(action["kind"], action["stage"], action["micro"], start, end)


def idealised(step: PipelineStep) -> tuple[tuple[Span, ...], ...]:
    """The same schedule by the clock: every kind of action takes its stage's median, messages nothing."""
    cost = costs([step])
    timing = simulate(step.plan, lambda action: cost[action.kind, action.stage])
    return tuple(
        tuple(
            Span(action.kind, action.stage, action.micro, *times)
            for action, times in zip(actions, spans, strict=True)
            if action.kind in COMPUTE
        )
        for actions, spans in zip(step.plan.actions, timing.spans, strict=True)
    )


def costs(steps: Sequence[PipelineStep]) -> dict[tuple[str, int], float]:
    """The median seconds of a kind of action in a stage."""
    return {key: median(times) for key, times in _by(steps, lambda span: (span.kind, span.stage)).items()}


def work(step: PipelineStep, cost: Mapping[tuple[str, int], float]) -> list[float]:
    """Seconds that each rank computes in a step."""
    return [sum(cost[a.kind, a.stage] for a in step.plan.compute(rank)) for rank in range(step.plan.ranks)]


def balanced(step: PipelineStep, cost: Mapping[tuple[str, int], float]) -> float:
    """Seconds that a step would be shorter if all ranks had the mean's work, by an ideal clock."""
    shares = work(step, cost)
    mean, rank_of = sum(shares) / len(shares), step.plan.rank_of

    def equal(action: Action) -> float:
        return cost[action.kind, action.stage] * mean / shares[rank_of[action.stage]]

    now = simulate(step.plan, lambda action: cost[action.kind, action.stage]).makespan
    return max(now - simulate(step.plan, equal).makespan, 0.0)


def _by(steps: Sequence[PipelineStep], key: Any) -> dict[Any, list[float]]:
    durations: dict[Any, list[float]] = defaultdict(list)
    for span in (span for step in steps for spans in step.ranks for span in spans):
        durations[key(span)].append(span.end - span.start)
    return durations


def length(ranks: Sequence[Sequence[Span]]) -> float:
    """Seconds from the first computation to the end of the last, over all ranks."""
    return max(s.end for spans in ranks for s in spans) - min(s.start for spans in ranks for s in spans)


def bubble(ranks: Sequence[Sequence[Span]]) -> float:
    """The share of the step in which the rank that waits most doesn't compute."""
    busy = [sum(span.end - span.start for span in spans) for spans in ranks]
    return 1 - min(busy) / length(ranks)


def formula(step: PipelineStep) -> float:
    """The schedule's bubble with all stages alike, each part taking its median over the whole step."""
    cost = {kind: median(times) for kind, times in _by([step], lambda span: span.kind).items()}
    whole = cost.get("backward")
    half = (whole or 0.0) / 2
    plan = step.plan
    stage = StageCost(cost["forward"], cost.get("backward_input", half), cost.get("backward_weight", half), whole)
    return bubble_fraction(plan.kind, plan.ranks, plan.virtual_stages, plan.micro_batches, stage)


def dump(steps: Sequence[PipelineStep]) -> dict[str, object]:
    """The keys of `pipeline` in `diagnose --json`: of the last step's schedule, medians over all steps."""
    last, cost = steps[-1], costs(steps)
    stages = [
        {"stage": stage, "rank": rank, "forward_s": cost["forward", stage],
         "backward_s": sum(cost.get((kind, stage), 0.0) for kind in BACKWARDS)}
        for stage, rank in enumerate(last.plan.rank_of)
    ]  # fmt: skip
    return {
        "schedule": last.plan.kind, "ranks": last.plan.ranks, "micro_batches": last.plan.micro_batches,
        "bubble_pct": 100 * median(bubble(step.ranks) for step in steps),
        "schedule_bubble_pct": 100 * formula(last), "stages": stages,
    }  # fmt: skip
