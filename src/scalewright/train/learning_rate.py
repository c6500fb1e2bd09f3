"""The learning rate, and how far a step is on the way to the end of a run, which it follows.

    train.steps    ends with that step                                      position = the step
    train.tokens   ends with the first step that has consumed so many,      position = tokens consumed /
                   counted from where the run stands                                   tokens of a first step

While the batch stays the two positions are the same numbers. A run that goes on with another batch or sequence length
still ends at its tokens, and its rate goes on where it was: warm-up and decay are counted in the steps that the run
began with. The learning rate is a pure function of the position, so that a resume needs no state:

    constant  ‾‾‾‾‾‾‾‾    linear  ‾\\__     cosine  ‾‾\\_      wsd  ‾‾‾‾‾‾\\    each after a linear warm-up /
                                                         (warm-up, stable, decay; Hu et al. 2024 §4)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, cos, pi

from scalewright.spec.run import ScheduleSpec
from scalewright.train.batches import DataPosition


@dataclass(frozen=True)
class Horizon:
    """The way of a run from `place` on, in steps of `per_step` tokens."""

    place: DataPosition
    per_step: int  # tokens
    total: int  # the last step
    unit: float | None  # tokens of the steps that the schedule is counted in; None: it is counted in steps

    def position(self, step: int) -> float:
        """How far the run is after `step`."""
        tokens = self.place.tokens + (step - self.place.step) * self.per_step
        return step if self.unit is None else tokens / self.unit

    def rate(self, schedule: ScheduleSpec, base: float, step: int) -> float:
        """The learning rate of a step."""
        return learning_rate(schedule, base, self.position(step), self.position(self.total))


def find_horizon(
    place: DataPosition, steps: int, tokens: float | None, per_step: int, unit: float | None = None
) -> Horizon:
    """The way to `tokens`, or to step `steps` when they are null. `unit` is what an earlier call had."""
    if tokens is None:
        return Horizon(place, per_step, steps, None)
    remaining = max(0, ceil(tokens) - place.tokens)
    if unit is None:
        unit = place.tokens / place.step if place.step else per_step
    return Horizon(place, per_step, place.step + ceil(remaining / per_step), unit)


def learning_rate(schedule: ScheduleSpec, base: float, step: float, total: float) -> float:
    """The rate of update `step` (1 is the first) of `total`; `base` is the highest. Either may be a fraction. The last
    update of a decay has exactly `min_ratio` x base, and stays there after it."""
    start: float = schedule.warmup_steps
    if step <= start:
        return base * step / start
    if schedule.kind == "constant":
        return base
    usual = max(1, total // 5) if schedule.kind == "wsd" else total - start
    length = schedule.decay_steps if schedule.decay_steps is not None else usual
    if schedule.kind == "wsd":
        start = max(start, total - length)
        length = min(length, total - start)  # a warm-up that reaches into the decay shortens it
    done = min(1.0, max(0.0, (step - start) / length)) if length > 0 else 1.0
    shape = 0.5 * (1 + cos(pi * done)) if schedule.kind == "cosine" else 1 - done
    return base * (schedule.min_ratio + (1 - schedule.min_ratio) * shape)
