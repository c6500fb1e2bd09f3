"""Causes that a log's curves show over its length: step times that shift or drift, losses that diverge or can't be.

That is: exactly 0 or -1, the same number over and over, or none from some step on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

from scalewright.diagnose.logs.changes import Change, divergence, rises, shifts
from scalewright.diagnose.logs.log import Log
from scalewright.diagnose.logs.steps import Step
from scalewright.diagnose.logs.times import timed, warm
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import against, counted, decimal, short_time

SAME, EXACT, DIGITS = 100, 12, 5  # equal losses in a row; those of more than so many characters
GONE = 5  # steps without a loss at the end
FALLS = 0.98  # of the first third's loss
LEAST = 1e-3  # a loss below it may be 0 when it is rounded
FIXES: dict[str, str] = read_yaml(Path(__file__).with_name("fixes.yaml"))


def cause_of(
    name: str, evidence: list[str], confidence: float, low: float = 0.0, middle: float = 0.0, most: float = 0.0
) -> Verdict:
    """A cause with its fix; what spoils the training and costs no time has gains of zero."""
    return Verdict(name, evidence, FIXES[name], confidence, Gain(low, middle, most))


def changed(log: Log, settled: Sequence[Step] | None = None) -> list[Verdict]:
    """All of them that there are; `settled`: the steps before the loss diverged."""
    steps = warm(log.steps)
    losses = steps if settled is None else warm(settled)
    verdicts = [_time(log.steps), _rose(losses, "loss rose", lambda step: step.loss)]
    verdicts += [_rose(steps, "gradient norm rose", lambda step: step.grad_norm), _no_gradient(log)]
    verdicts += [] if log.policy else [_impossible(log.steps)]
    return [verdict for verdict in verdicts if verdict is not None]


def _time(steps: Sequence[Step]) -> Verdict | None:
    rows = [(steps[place], seconds) for place, seconds in timed(steps) if seconds > 0]
    changes = shifts([seconds for _, seconds in rows])
    if not any(change.after > change.before for change in changes):
        return None
    if changes[0].drift:
        (change,) = changes
        line = (
            f"a step grows from {short_time(change.before)} to {short_time(change.after)} over these "
            f"{counted(len(rows), 'steps')} ({against(change.after, change.before)}), little by little"
        )
        gain = 100 * (1 - change.before / change.after)
        return cause_of("step time drifts", [line, _goes_on(gain / 2, gain)], 0.7, gain / 2, gain, gain)
    lines = [_shift(change, rows) for change in changes]
    places = [*(change.place for change in changes), len(rows)]
    levels = [changes[0].before, *(change.after for change in changes)]
    lengths = [places[0], *(after - before for before, after in pairwise(places))]
    total = sum(level * length for level, length in zip(levels, lengths, strict=True))
    lost = sum((level - min(levels)) * length for level, length in zip(levels, lengths, strict=True))
    share, last = 100 * lost / total, 100 * (1 - min(levels) / levels[-1])
    if last <= share:
        return cause_of("step time shifted", lines, 0.9, 0.0, share / 2, share)
    return cause_of("step time shifted", [*lines, _goes_on(share, last)], 0.9, share, last, last)


def _goes_on(share: float, last: float) -> str:
    """What the rest of a run pays counts: a log that ends soon after a change has paid little of it."""
    return f"it goes on to the end: {last:.0f}% of each step from here on, where it was {share:.1f}% of this log's time"


def _shift(change: Change, rows: Sequence[tuple[Step, float]]) -> str:
    step, before = rows[change.place][0], rows[change.place - 1][0]
    restart = ", right after a restart" if step.life != before.life else ""
    return (
        f"from {_name(step)} on a step takes {short_time(change.after)}, before {short_time(change.before)} "
        f"({against(change.after, change.before)}){restart}"
    )


def _name(step: Step) -> str:
    return f"step {step.step:,}" if step.step is not None else "a step without a number"


def _since(step: Step) -> str:
    return f" from {_name(step)} on" if step.step is not None else ""


def diverged(log: Log) -> tuple[Verdict | None, Sequence[Step]]:
    """A loss that left its lowest level for good, and the steps before that: all of them where it didn't.

    Rewards are trained on with a loss about 0, whose size means nothing: of such a log none.
    """
    rows = [(place, step.loss) for place, step in enumerate(log.steps) if step.loss is not None]
    rows = [(place, loss) for place, loss in rows if math.isfinite(loss)]
    if log.policy and min((loss for _, loss in rows), default=0.0) <= LEAST:
        return None, []
    change = divergence([loss for _, loss in rows])
    if change is None:
        return None, log.steps
    place, highest = rows[change.place][0], max(loss for _, loss in rows[change.place :])
    line = (
        f"from {_name(log.steps[place])} on the loss goes from {decimal(change.before)} to {decimal(change.after)}, "
        f"highest {decimal(highest)}, and never recovers in the {counted(len(rows) - change.place, 'lines')} since"
    )
    return cause_of("loss diverged", [line], 0.9), log.steps[:place]


def _rose(steps: Sequence[Step], name: str, value: Callable[[Step], float | None]) -> Verdict | None:
    rows = [(step, number) for step in steps if (number := value(step)) is not None and math.isfinite(number)]
    lines = [
        f"at {_name(rows[change.place][0])} from {decimal(change.before)} to {decimal(change.after)}, and it stays"
        for change in rises([number for _, number in rows])
    ]
    return cause_of(name, lines, 0.8) if lines else None


def _no_gradient(log: Log) -> Verdict | None:
    """Norms of exactly 0 in most steps, or from some step to the end, beside a loss that doesn't fall.

    The first steps of GRPO have a loss of 0, and so have groups whose answers are all right: not a norm of 0 for long.
    """
    rows = [step for step in log.steps if step.grad_norm is not None]
    zero = [step for step in rows if step.grad_norm == 0]
    until = next((place for place in range(len(rows), 0, -1) if rows[place - 1].grad_norm != 0), 0)
    if len(rows) - until < GONE and not (len(zero) >= GONE and 2 * len(zero) > len(rows)):
        return None
    losses, third = [step.loss for step in rows if step.loss is not None], len(rows) // 3
    if not log.policy and len(losses) > GONE and median(losses[-third:]) < FALLS * median(losses[:third]):
        return None  # it isn't the whole model's norm, or isn't measured
    last = f", the last {len(rows) - until:,} among them{_since(rows[until])}" if until < len(rows) else ""
    line = f"the gradient norm is 0 in {len(zero):,} of {counted(len(rows), 'steps')}{last}: they change no weight"
    return cause_of("no gradient", [line], 0.8)


def _impossible(steps: Sequence[Step]) -> Verdict | None:
    losses = [(step, step.loss) for step in steps if step.loss is not None]
    lines = []
    for number in (0.0, -1.0):
        exact = [step for step, loss in losses if loss == number]
        usual = any(abs(loss) > LEAST and loss != number for _, loss in losses)
        # GRPO's loss may be 0 on each step: its gradients aren't.
        still = all(step.grad_norm is not None and not step.grad_norm > 0 for step in exact)
        if exact and (usual or still):
            have = "has" if len(exact) == 1 else "have"
            lines.append(f"{counted(len(exact), 'steps')}{_since(exact[0])} {have} a loss of exactly {number:.1f}")
    for loss, group in groupby(losses, key=lambda pair: pair[1]):
        same = list(group)
        least = EXACT if len(str(loss)) > DIGITS else SAME
        if len(same) >= least and loss not in (0.0, -1.0) and math.isfinite(loss):
            since = _since(same[0][0])
            lines.append(f"{counted(len(same), 'steps')} in a row{since} have the loss {decimal(loss)}")
    last = next((place for place in range(len(steps) - 1, -1, -1) if steps[place].loss is not None), None)
    if last is not None and len(losses) >= GONE and len(steps) - 1 - last >= GONE and last + 1 - len(losses) < GONE:
        lines.append(f"the last {counted(len(steps) - 1 - last, 'steps')} have no loss")
    return cause_of("loss that can't be", lines, 0.9) if lines else None
