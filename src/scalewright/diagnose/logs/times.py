"""The usual step of a log, and the steps that took longer.

    warm-up   usual steps               stall     usual            usual: the median, without the first
    ██████    ██ ██ ██ ██ ██ ██ ██ ██   ███████   ██ ██ ██ ██      ones after each start

A step that a profiler records, and the next one, in whose time it may have written its file, aren't usual ones either.

A step's time is what its line states. Where the clock of the lines shows a longer gap (a save or an evaluation between
two steps isn't in their times), or no time is stated, it is the gap over its steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.logs.steps import Step

WARM_UP = 2  # lines after a start: the first compiles, the second may show only how fast work was queued
LEAST = 3  # usual lines that must remain, else fewer are left out
DEVIATIONS, LEAST_FACTOR = 6.0, 1.3  # a slow step: beyond both, in deviations and as a factor of the median
CLOCK = 1.0  # seconds: the resolution of most loggers' clocks
TRACE = re.compile(r"step-(\d{1,12})")  # of a file in the run's traces/
PERIODIC = 0.8  # share of the slow steps that the period explains, from which they are periodic


@dataclass(frozen=True)
class Usual:
    """Medians over the usual steps; None for what the log doesn't state. `source` is of the step's time."""

    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    tflops: float | None
    steps: int
    left_out: int
    source: str  # stated, clock, mean (of the whole run), or empty
    traced: int = 0  # further steps that were left out


@dataclass(frozen=True)
class Slow:
    """Steps far above the median: their numbers and seconds, the share of the time that they cost beyond it.

    `period` is the number of steps from one to the next where that is regular, else None.
    """

    steps: list[int | None]
    seconds: list[float]
    median: float
    share: float
    period: int | None


def usual(steps: Sequence[Step], mean: float | None = None) -> Usual:
    """The medians after warm-up; `mean` is the whole run's, in seconds, where a log states no more."""
    kept = warm(steps)
    seconds, tokens, tokens_per_device, tflops = (
        _median(kept, key) for key in ("step_time_s", "tokens_per_s", "tokens_per_s_per_device", "tflops")
    )
    source = "stated" if seconds is not None else ""
    if seconds is None and (gaps := [gap for pair in pairwise(steps) if (gap := _gap(*pair)) is not None]):
        seconds, source = float(np.median(gaps)), "clock"
    elif seconds is None:
        seconds, source = mean, "mean" if mean else ""
    traced = 0 if any(step.traced for step in kept) else sum(step.traced for step in steps)
    return Usual(seconds, tokens, tokens_per_device, tflops, len(kept), len(steps) - len(kept) - traced, source, traced)


def traced_steps(folder: Path, config: Any) -> set[int]:
    """The steps of a run of ours that a profiler slowed, by its configuration and its traces."""
    profile = config.get("profile") if isinstance(config, Mapping) else None
    listed = profile.get("steps") if isinstance(profile, Mapping) else None
    steps = {step for step in (listed if isinstance(listed, list) else []) if isinstance(step, int)}
    steps |= {int(match[1]) for path in (folder / "traces").glob("*") if (match := TRACE.search(path.name))}
    return steps | {step + 1 for step in steps}


def warm(steps: Sequence[Step]) -> list[Step]:
    """The steps without traced ones and the first ones of each life, as many as leave enough of them."""
    if any(step.traced for step in steps) and len(usual := [step for step in steps if not step.traced]) >= 2 * LEAST:
        return warm(usual)
    starts = [0] + [n for n, (a, b) in enumerate(pairwise(steps), 1) if a.life != b.life] + [len(steps)]
    for least in range(WARM_UP, 0, -1):
        rest = [step for a, b in pairwise(starts) for step in steps[a + least : b]]
        if len(rest) >= LEAST:
            return rest
    return list(steps)


def slow_steps(steps: Sequence[Step]) -> Slow | None:
    """The steps far above the median; None where there are none, or too few steps to tell.

    A step is slow from 6 deviations above the median and 1.3 times it. The deviation is the median one times
    1.4826, as of a normal distribution; half of the steps may be anything without moving either.
    """
    kept = timed(steps)
    if len(kept) < 8:
        return None
    places, measured = [place for place, _ in kept], np.array([seconds for _, seconds in kept])
    median = float(np.median(measured))
    deviation = 1.4826 * float(np.median(np.abs(measured - median)))
    slow = np.flatnonzero(measured > max(median + DEVIATIONS * deviation, LEAST_FACTOR * median))
    if not len(slow):
        return None
    numbers = [steps[places[index]].step for index in slow]
    share = float((measured[slow] - median).sum() / measured.sum())
    return Slow(numbers, measured[slow].tolist(), median, share, _period([places[index] for index in slow]))


def timed(steps: Sequence[Step]) -> list[tuple[int, float]]:
    """The places of the usual steps and their seconds, where they have some."""
    kept = {id(step) for step in warm(steps)}
    return [
        (place, seconds)
        for place, (step, seconds) in enumerate(zip(steps, times(steps), strict=True))
        if id(step) in kept and seconds is not None and math.isfinite(seconds)
    ]


def times(steps: Sequence[Step]) -> list[float | None]:
    """Seconds of each step, with the pause before it where the clock shows one."""
    seconds: list[float | None] = []
    for before, step in zip([None, *steps], steps, strict=False):
        gap, stated = _gap(before, step), step.step_time_s
        hidden = gap is not None and (stated is None or gap > 1.3 * stated + CLOCK)
        seconds.append(gap if hidden else stated)
    return seconds


def _gap(before: Step | None, step: Step) -> float | None:
    """Seconds of a step between two lines of the same life, by their clocks."""
    if before is None or before.life != step.life or before.clock is None or step.clock is None:
        return None
    if before.step is None or step.step is None or step.step <= before.step or step.clock <= before.clock:
        return None
    return (step.clock - before.clock) / (step.step - before.step)


def _period(places: Sequence[int]) -> int | None:
    """The distance between slow steps where most of them keep to it."""
    if len(places) < 3:
        return None
    gaps = np.diff(places)
    period = int(np.median(gaps))
    return period if period > 1 and float(np.mean(gaps == period)) >= PERIODIC else None


def _median(steps: Sequence[Step], key: str) -> float | None:
    values = [value for step in steps if (value := getattr(step, key)) is not None and value > 0]
    return float(np.median(values)) if values else None
