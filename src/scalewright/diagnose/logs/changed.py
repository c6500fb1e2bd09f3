"""Causes that a log's curves show over its length: the step time's shifts and drift, rises of loss and norm.

And losses that can't be: exactly 0 or -1, the same number over and over, or none from some step on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from scalewright.diagnose.logs.changes import Change, rises, shifts
from scalewright.diagnose.logs.log import Log
from scalewright.diagnose.logs.steps import Step
from scalewright.diagnose.logs.times import times, warm
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.common.formatting import against, counted, decimal, short_time

SAME, GONE = 100, 5  # equal losses in a row; steps without one at the end
LEAST = 1e-3  # a loss below it may be 0 when it is rounded
FIXES = {
    "step time shifted": "see what changed then: a node, a clock (nvidia-smi -q -d CLOCK,PERFORMANCE), the storage, "
    "other jobs beside it; a trace from before and one from after show where the time goes",
    "step time drifts": "something fills up or heats up: memory that fragments, a data loader that seeks further, "
    "clocks that throttle; a restart tells whether it begins anew",
    "loss rose": "go back to a checkpoint before it; look at the batches and the learning rate of these steps",
    "gradient norm rose": "look at the batches of these steps, clip gradients, or lower the learning rate",
    "loss that can't be": "look at what is counted: labels that are all masked (-100), a NaN that was filtered to 0, a "
    "mean over no tokens, an optimizer that changes nothing",
}
NO_TIME = Gain(0.0, 0.0, 0.0)


def changed(log: Log) -> list[Verdict]:
    """All of them that there are."""
    steps = warm(log.steps)
    verdicts = [_time(steps), _rose(steps, "loss rose", lambda step: step.loss)]
    verdicts += [_rose(steps, "gradient norm rose", lambda step: step.grad_norm), _impossible(log.steps)]
    return [verdict for verdict in verdicts if verdict is not None]


def _time(steps: Sequence[Step]) -> Verdict | None:
    timed = [(step, seconds) for step, seconds in zip(steps, times(steps), strict=True) if seconds and seconds > 0]
    changes = shifts([seconds for _, seconds in timed])
    if not any(change.after > change.before for change in changes):
        return None
    if changes[0].drift:
        (change,) = changes
        line = (
            f"a step grows from {short_time(change.before)} to {short_time(change.after)} over these "
            f"{counted(len(timed), 'steps')} ({against(change.after, change.before)}), little by little"
        )
        gain = 50 * (1 - change.before / change.after)
        return Verdict("step time drifts", [line], FIXES["step time drifts"], 0.7, Gain(0.0, gain, 2 * gain))
    lines = [_shift(change, timed) for change in changes]
    places = [*(change.place for change in changes), len(timed)]
    levels = [changes[0].before, *(change.after for change in changes)]
    lengths = [places[0], *(after - before for before, after in pairwise(places))]
    total = sum(level * length for level, length in zip(levels, lengths, strict=True))
    lost = sum((level - min(levels)) * length for level, length in zip(levels, lengths, strict=True))
    share = 100 * lost / total
    return Verdict("step time shifted", lines, FIXES["step time shifted"], 0.9, Gain(0.0, share / 2, share))


def _shift(change: Change, timed: Sequence[tuple[Step, float]]) -> str:
    step, before = timed[change.place][0], timed[change.place - 1][0]
    restart = ", right after a restart" if step.life != before.life else ""
    return (
        f"from {_name(step)} on a step takes {short_time(change.after)}, before {short_time(change.before)} "
        f"({against(change.after, change.before)}){restart}"
    )


def _name(step: Step) -> str:
    return f"step {step.step:,}" if step.step is not None else "a step without a number"


def _rose(steps: Sequence[Step], name: str, value: Callable[[Step], float | None]) -> Verdict | None:
    rows = [(step, number) for step in steps if (number := value(step)) is not None and math.isfinite(number)]
    lines = [
        f"at {_name(rows[change.place][0])} from {decimal(change.before)} to {decimal(change.after)}, and it stays"
        for change in rises([number for _, number in rows])
    ]
    return Verdict(name, lines, FIXES[name], 0.8, NO_TIME) if lines else None


def _impossible(steps: Sequence[Step]) -> Verdict | None:
    losses = [(step, step.loss) for step in steps if step.loss is not None]
    lines = []
    for number in (0.0, -1.0):
        exact = [step for step, loss in losses if loss == number]
        usual = any(abs(loss) > LEAST and loss != number for _, loss in losses)
        if exact and usual:
            lines.append(
                f"{counted(len(exact), 'steps')} from {_name(exact[0])} on have a loss of exactly {number:.1f}"
            )
    for loss, group in groupby(losses, key=lambda pair: pair[1]):
        same = list(group)
        if len(same) >= SAME and loss not in (0.0, -1.0) and math.isfinite(loss):
            since = _name(same[0][0])
            lines.append(f"{counted(len(same), 'steps')} in a row from {since} on have the loss {decimal(loss)}")
    last = next((place for place in range(len(steps) - 1, -1, -1) if steps[place].loss is not None), None)
    if last is not None and len(losses) >= GONE and len(steps) - 1 - last >= GONE and last + 1 - len(losses) < GONE:
        lines.append(f"the last {counted(len(steps) - 1 - last, 'steps')} have no loss")
    return Verdict("loss that can't be", lines, FIXES["loss that can't be"], 0.9, NO_TIME) if lines else None
