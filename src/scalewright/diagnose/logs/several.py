"""Several files of one run: its ranks', which print the same steps, or its parts, one after another.

rank0.log  1 2 3 4 5      the same steps and losses: one run       steps 1 2 3 4 5
rank1.log  1 2 3 4 5

job-1.log  1 2 3 4 5      other steps: the next part               steps 1 2 3 4 5 | 4 5 6 7 8, a restart
job-2.log  4 5 6 7 8
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from scalewright.diagnose.logs.log import Log, read_log
from scalewright.diagnose.logs.steps import Step

SHARED = 0.5  # share of the shorter file's steps that are in the other, from which both are of the same part


def read_logs(files: Sequence[Path]) -> Log:
    """The run's log, of its files in the order of their names; raises OSError where one can't be read."""
    return reduce(join, (read_log(path) for path in files))


def join(log: Log, other: Log) -> Log:
    """Both as one: the longer of two that share their steps, else one after the other."""
    longer = log if len(log.steps) >= len(other.steps) else other
    facts = {**log.facts, **other.facts}
    notes = [*dict.fromkeys(log.notes + other.notes)]
    framework, nccl = longer.framework or log.framework, log.nccl or other.nccl
    run = other.run or log.run
    if not log.steps or not other.steps or _shared(log.steps, other.steps):
        overflows = max(log.overflows, other.overflows)
        return Log(framework, facts, longer.steps, longer.restarts, overflows, longer.again, nccl, notes, run)
    last, first = log.steps[-1].step, other.steps[0].step
    back = last is not None and first is not None and first <= last
    restarts = log.restarts + (back or other.again)
    for step in other.steps:
        step.life += restarts
    overflows = log.overflows + other.overflows
    steps = log.steps + other.steps
    return Log(framework, facts, steps, restarts + other.restarts, overflows, log.again, nccl, notes, run)


def _shared(steps: Sequence[Step], others: Sequence[Step]) -> bool:
    """Whether they are the same steps; those without a number or a loss are compared by what they have."""
    keys = {(step.step, step.loss) for step in steps}
    same = sum((step.step, step.loss) in keys for step in others)
    return same >= SHARED * min(len(steps), len(others))
