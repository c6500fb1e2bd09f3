"""What a log's steps show to be wrong, worst first: one function a cause, each silent where all is well.

    loss diverged, not finite    slower than expected    periodic slow steps, stalls    skipped updates    loss spikes

Gains are percent of the run's time; what spoils the training and costs no time has gains of zero. Of the loss:

loss   ·  ·                 running median of the 32 steps before: ─
         · ·    ×           deviation: the median distance from it, times 1.4826
            ·─·───·─·──     spike: more than 8 deviations above it, and 2% of it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from scalewright.diagnose.logs.changed import cause_of, changed, diverged
from scalewright.diagnose.logs.log import Log
from scalewright.diagnose.logs.steps import Step
from scalewright.diagnose.logs.times import slow_steps
from scalewright.diagnose.verdict import Verdict
from scalewright.spec.common.formatting import counted, decimal, short_time

WINDOW, LEAST_BEFORE = 32, 8  # steps
DEVIATIONS, OF_THE_MEDIAN = 8.0, 0.02
PIECE = 50_000  # steps whose windows are in memory together


@dataclass(frozen=True)
class Spike:
    """Steps in a row far above the usual: the first one, the highest loss, and the usual one."""

    step: int | None
    loss: float
    usual: float


def not_finite(steps: Sequence[Step]) -> list[Step]:
    """The steps whose loss or gradient norm is NaN or infinite, or whose line counts such iterations.

    A skipped step isn't among them: with fp16 its gradients are infinite by design.
    """

    def broken(value: float | None) -> bool:
        return value is not None and not math.isfinite(value)

    return [
        step
        for step in steps
        if broken(step.loss) or (step.nan or 0) > 0 or (broken(step.grad_norm) and not step.skipped)
    ]


def spikes(steps: Sequence[Step]) -> list[Spike]:
    """Steps whose loss is far above the running median of those before.

    Assumes that within 32 steps the loss scatters about a level that changes slowly, and that fewer than half of them
    are spikes themselves: the median and the median deviation aren't moved by the rest. The fast fall at a start isn't
    a spike, since only what is above counts.
    """
    rows = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    loss = np.array([step.loss for step in rows], dtype=float)
    level, limit = _limits(loss)
    high = np.flatnonzero(loss > limit)
    in_a_row = np.split(high, np.flatnonzero(np.diff(high) > 1) + 1) if len(high) else []
    return [Spike(rows[row[0]].step, float(loss[row].max()), float(level[row[0]])) for row in in_a_row]


def _limits(loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The running median before each step and what a spike exceeds; infinite where too few came before."""
    level, limit = np.full(len(loss), np.inf), np.full(len(loss), np.inf)
    padded = np.concatenate([np.full(WINDOW, np.nan), loss])
    for start in range(LEAST_BEFORE, len(loss), PIECE):
        stop = min(start + PIECE, len(loss))
        windows = np.lib.stride_tricks.sliding_window_view(padded[start : stop + WINDOW - 1], WINDOW)
        median = np.nanmedian(windows, axis=1)
        deviation = 1.4826 * np.nanmedian(np.abs(windows - median[:, None]), axis=1)
        level[start:stop] = median
        limit[start:stop] = median + np.maximum(DEVIATIONS * deviation, OF_THE_MEDIAN * np.abs(median))
    return level, limit


LEAST_SHARE = 0.01  # of the time, that slow or skipped steps must cost to be named
MOST_NAMED = 5
LOST = ("loss diverged", "loss not finite")  # what spoils all that comes after
MATTERS = ("recompute", "layout", "precision", "sharding", "mbs", "tp ", "pp ")  # assumptions that cost much


def causes(log: Log, expected: Mapping[str, Any] | None) -> list[Verdict]:
    """All causes: a loss that diverged, or isn't finite, first, then by gain."""
    divergence, settled = diverged(log)
    rules = [divergence, _not_finite(log), _slow(expected), _uneven(log), _skipped(log), _spikes(settled)]
    present = [cause for cause in rules if cause is not None] + changed(log, settled)
    return sorted(present, key=lambda cause: (cause.cause not in LOST, -cause.usual_gain))


def _slow(expected: Mapping[str, Any] | None) -> Verdict | None:
    if expected is None or expected["measured_s"] <= expected["p90"]:
        return None
    seconds = expected["measured_s"]
    low, middle, most = (100 * (1 - expected[key] / seconds) for key in ("p90", "p50", "p10"))
    line = (
        f"a step takes {short_time(seconds)} where {short_time(expected['p50'])} is expected "
        f"({short_time(expected['p10'])} to {short_time(expected['p90'])}), by {expected['compared_by']}"
    )
    guessed = [assumption for assumption in expected["assumed"] if assumption.startswith(MATTERS)]
    unsure = [f"this assumes {'; '.join(guessed)}: --layout states it otherwise"] * bool(guessed)
    return cause_of("slower than expected", [line, *unsure], 0.4 if guessed else 0.7, low, middle, most)


def _uneven(log: Log) -> Verdict | None:
    slow = slow_steps(log.steps)
    if slow is None or slow.share < LEAST_SHARE:
        return None
    gain = 100 * slow.share
    steps = "a step is" if len(slow.steps) == 1 else f"{len(slow.steps):,} steps are"
    line = (
        f"{steps} far above the median of {short_time(slow.median)}{_named(slow.steps)}, the longest "
        f"{short_time(max(slow.seconds))}: {gain:.1f}% of the time"
    )
    if slow.period is None:
        return cause_of("stalls", [line], 0.6, 0.0, gain / 2, gain)
    why = f"every {slow.period:,} lines: something periodic, such as saving, evaluating or collecting garbage"
    return cause_of("periodic slow steps", [line, why], 0.8, 0.0, gain / 2, gain)


def _named(steps: Sequence[int | None]) -> str:
    """` (steps 10, 20, 30, 40, 50, ...)`; nothing where the log has no numbers."""
    numbers = [f"{step:,}" for step in steps if step is not None]
    rest = ", ..." if len(numbers) > MOST_NAMED else ""
    word = "step" if len(numbers) == 1 else "steps"
    return f" ({word} {', '.join(numbers[:MOST_NAMED])}{rest})" if numbers else ""


def _skipped(log: Log) -> Verdict | None:
    count = int(sum(step.skipped or 0 for step in log.steps)) + log.overflows
    share = min(count / _passed(log.steps), 1.0) if log.steps else 0.0
    if share < LEAST_SHARE:
        return None
    if count > _passed(log.steps):  # several engines, as of actor and critic, or lines that stand for more steps
        line = f"fp16 gradients overflowed at their loss scale {count:,} times; of how many steps isn't in the log"
        return cause_of("skipped updates", [line], 0.5)
    line = (
        f"{counted(count, 'steps')} of {_passed(log.steps):,} changed no weight: fp16 gradients overflowed "
        "at their loss scale, which is halved each time"
    )
    return cause_of("skipped updates", [line], 0.8, 0.0, 50 * share, 100 * share)


def _passed(steps: Sequence[Step]) -> int:
    """Steps that passed by their numbers: a line may stand for ten."""
    numbers = [step.step for step in steps if step.step is not None]
    return len(steps) * min((b - a for a, b in pairwise(numbers) if b > a), default=1)


def _not_finite(log: Log) -> Verdict | None:
    broken = not_finite(log.steps)
    if not broken:
        return None
    steps = "a step has" if len(broken) == 1 else f"{len(broken):,} steps have"
    line = f"{steps} a loss or gradient norm that is NaN or infinite{_named([step.step for step in broken])}"
    last = next((step.loss for step in reversed(log.steps) if step.loss is not None), 0.0)
    lost = ["no finite loss comes after: the time since then is lost"] if last - last != 0 else []
    return cause_of("loss not finite", [line, *lost], 0.95)


def _spikes(steps: Sequence[Step]) -> Verdict | None:
    high = spikes(steps)
    if not high:
        return None
    largest = sorted(high, key=lambda some: some.usual - some.loss)[:MOST_NAMED]
    named = [
        f"step {'?' if spike.step is None else format(spike.step, ',')} to {decimal(spike.loss)} "
        f"from {decimal(spike.usual)}"
        for spike in largest
    ]
    line = f"{counted(len(high), 'spikes')} of the loss, more than 8 deviations above the running median"
    return cause_of("loss spikes", [f"{line}: {'; '.join(named)}"], 0.7)
