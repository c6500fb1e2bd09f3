"""The learning rate of every update: a pure function of the step, so that a resume needs no state.

constant  ‾‾‾‾‾‾‾‾    linear  ‾\\__     cosine  ‾‾\\_      wsd  ‾‾‾‾‾‾\\    each after a linear warm-up /
                                                     (warm-up, stable, decay; Hu et al. 2024 §4)
"""

from __future__ import annotations

from math import cos, pi

from scalewright.spec.run import ScheduleSpec


def learning_rate(schedule: ScheduleSpec, base: float, step: float, total: float) -> float:
    """The rate of update `step` (1 is the first) of `total`; `base` is the highest. Either may be a fraction.

    The last update of a decay has exactly `min_ratio` x base, and stays there after it.
    """
    warmup = schedule.warmup_steps
    if step <= warmup:
        return base * step / warmup
    if schedule.kind == "constant":
        return base
    if schedule.kind == "wsd":
        length = schedule.decay_steps if schedule.decay_steps is not None else max(1, total // 5)
        start = max(warmup, total - length)
        length = min(length, total - start)  # a warm-up that reaches into the decay shortens it
    else:
        start = warmup
        length = schedule.decay_steps if schedule.decay_steps is not None else total - warmup
    done = min(1.0, max(0.0, (step - start) / length)) if length > 0 else 1.0
    shape = 0.5 * (1 + cos(pi * done)) if schedule.kind == "cosine" else 1 - done
    return base * (schedule.min_ratio + (1 - schedule.min_ratio) * shape)
