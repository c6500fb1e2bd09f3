"""What went wrong with the loss: values that aren't finite, spikes, steps whose update was skipped.

loss   ·  ·                 running median of the 32 steps before: ─
         · ·    ×           deviation: the median distance from it, times 1.4826
            ·─·───·─·──     spike: more than 8 deviations above it, and 2% of it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.logs.steps import Step

WINDOW, LEAST_BEFORE = 32, 8  # steps
DEVIATIONS, LEAST_SHARE = 8.0, 0.02
PIECE = 50_000  # steps whose windows are in memory together


@dataclass(frozen=True)
class Spike:
    """Steps in a row far above the usual: the first one, the highest loss, and the usual one."""

    step: int | None
    loss: float
    usual: float
    length: int


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


def skipped(steps: Sequence[Step]) -> int:
    """Steps whose update was skipped, as the lines count them."""
    return int(sum(step.skipped or 0 for step in steps))


def spikes(steps: Sequence[Step]) -> list[Spike]:
    """Steps whose loss is far above the running median of those before.

    Assumes that within 32 steps the loss scatters about a level that changes slowly, and that fewer than half
    of them are spikes themselves: the median and the median deviation aren't moved by the rest. The fast fall
    at a start isn't a spike, since only what is above counts.
    """
    rows = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    loss = np.array([step.loss for step in rows], dtype=float)
    level, limit = _limits(loss)
    high = np.flatnonzero(loss > limit)
    result: list[Spike] = []
    last = -2
    for place in high.tolist():
        if place == last + 1 and result:
            before = result[-1]
            result[-1] = Spike(
                before.step, max(before.loss, float(loss[place])), before.usual, before.length + 1
            )
        else:
            result.append(Spike(rows[place].step, float(loss[place]), float(level[place]), 1))
        last = place
    return result


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
        limit[start:stop] = median + np.maximum(DEVIATIONS * deviation, LEAST_SHARE * np.abs(median))
    return level, limit
