"""When a log changed: lasting shifts of the step time, jumps of the loss and the gradient norm.

step time   ████████████████▇▇▇▇████▇███           a shift: the level before, the level after, and where
                            └ step 81: 1.00 s -> 1.22 s

A shift is where the running sum of ranks leaves its mean farthest (CUSUM), tested against the largest excursion of a
Brownian bridge, and found again in both parts. Assumption: around its level a series is noise with a short memory (an
autoregressive one of order 1, whose coefficient is estimated and widens the test); a single slow step moves no rank
by much. Of 100 clean series fewer than one gives an alarm (ALPHA for each test, and a change that matters).

A loss falls while all is well: there only a rise counts, of the median of a window over that of the window before,
beyond what windows of this very log differ by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ALPHA = 1e-4  # of one test
LEAST = 8  # values of a level
MATTERS, DEVIATIONS = 0.03, 1.5  # of the level; of the noise about it
SURE = 6.0  # standard errors of a slope
MOST = 8  # shifts that are named
WINDOW, RISE, TIMES = 24, 0.15, 8.0  # values; of the median; of the windows' usual difference


@dataclass(frozen=True)
class Change:
    """A level and the next: the first value of the new one is at `place`."""

    place: int
    before: float
    after: float
    drift: bool = False  # it grows little by little, and `place` is where it begins

    @property
    def share(self) -> float:
        """By how much of the level before."""
        return self.after / self.before - 1


def shifts(values: Sequence[float]) -> list[Change]:
    """Lasting changes of positive values, in order."""
    if len(values) < 2 * LEAST:
        return []
    x = np.log(np.asarray(values, dtype=float))
    places = sorted(_split(x, 0, len(x), MOST))
    bounds = [0, *places, len(x)]
    levels = [math.exp(float(np.median(x[a:b]))) for a, b in pairwise(bounds)]
    changes = [Change(place, levels[n], levels[n + 1]) for n, place in enumerate(places)]
    changes = [change for change in changes if abs(change.share) >= MATTERS]
    return changes or _drift(x)


def _split(x: np.ndarray, start: int, stop: int, most: int) -> list[int]:
    """Places of shifts between two others."""
    n = stop - start
    if n < 2 * LEAST or most <= 0:
        return []
    part = x[start:stop]
    ranks = np.argsort(np.argsort(part, kind="stable"), kind="stable").astype(float)
    path = np.cumsum(ranks - ranks.mean())
    inside = np.abs(path[LEAST - 1 : n - LEAST])
    place = int(inside.argmax()) + LEAST
    before, after = part[:place], part[place:]
    difference = abs(float(np.median(after) - np.median(before)))
    noise = 1.4826 * float(np.median(np.abs(np.concatenate([before - np.median(before), after - np.median(after)]))))
    if difference < max(math.log1p(MATTERS), DEVIATIONS * noise):
        return []
    rest = np.concatenate([ranks[:place] - ranks[:place].mean(), ranks[place:] - ranks[place:].mean()])
    if _exceeds(float(inside.max()), rest, n) > ALPHA:
        return []
    halves = (_split(x, start, start + place, most // 2), _split(x, start + place, stop, most // 2))
    return [*halves[0], start + place, *halves[1]]


def _exceeds(excursion: float, rest: np.ndarray, n: int) -> float:
    """How likely noise alone, with the memory of `rest`, goes that far: Kolmogorov's distribution."""
    scaled = excursion / math.sqrt(n * (float(np.mean(rest**2)) or 1e-12) * _widened(rest))
    terms = (math.copysign(math.exp(-2 * (k * scaled) ** 2), (k % 2) - 0.5) for k in range(1, 6))
    return min(2 * sum(terms), 1.0)


def _drift(x: np.ndarray) -> list[Change]:
    """A slow growth over all of the series: a line whose slope is beyond what noise of its memory gives."""
    n = len(x)
    if n < 4 * LEAST:
        return []
    at = np.arange(n) - (n - 1) / 2
    slope = float(at @ x / (at @ at))
    rest = x - x.mean() - slope * at
    error = math.sqrt(float(rest @ rest) / (n - 2) / float(at @ at) * _widened(rest))
    first, last = (math.exp(float(np.median(x)) + slope * side * (n - 1) / 2) for side in (-1, 1))
    if abs(last / first - 1) < 2 * MATTERS or abs(slope) < SURE * error:
        return []
    return [Change(0, first, last, drift=True)]


def _widened(rest: np.ndarray) -> float:
    """By how much noise with the memory of `rest` has a larger variance of its mean than without."""
    variance = float(np.mean(rest**2)) or 1e-12
    memory = min(max(float(np.mean(rest[1:] * rest[:-1])) / variance, 0.0) + 2 / math.sqrt(len(rest)), 0.97)
    return (1 + memory) / (1 - memory)


def rises(values: Sequence[float]) -> list[Change]:
    """Lasting rises of a series that falls or stays otherwise, in order."""
    x = np.asarray(values, dtype=float)
    if len(x) < 4 * WINDOW:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(x, WINDOW)
    medians = np.median(windows, axis=1)
    before, after = medians[:-WINDOW], medians[WINDOW:]
    size = np.maximum(np.abs(before), 1e-12)
    difference = (after - before) / size
    usual = float(np.median(np.abs(difference)))
    changes: list[Change] = []
    place = WINDOW
    while place <= len(x) - WINDOW:
        now = difference[place - WINDOW]
        if now > max(RISE, TIMES * usual) and x[place : place + WINDOW].min() > before[place - WINDOW]:
            stop = min(place + WINDOW, len(difference) + WINDOW)
            best = max(range(place, stop), key=lambda at: difference[at - WINDOW])
            changes.append(Change(best, float(before[best - WINDOW]), float(after[best - WINDOW])))
            place = best + WINDOW
        place += 1
    return changes[:MOST]
