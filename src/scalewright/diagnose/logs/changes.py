"""When a log changed: lasting shifts of the step time, jumps of the loss and the gradient norm.

step time   ████████████████▇▇▇▇████▇███           a shift: the level before, the level after, and where
                            └ step 81: 1.00 s -> 1.22 s

A shift is where the running sum of ranks leaves its mean farthest (CUSUM), tested against the largest excursion of a
Brownian bridge, and found again in both parts; near an end, where that has no room, each place is tested by its own
standard error, over all places (Bonferroni). Assumption: around its level a series is noise with a short memory (an
autoregressive one of order 1, whose coefficient is estimated and widens the test); a single slow step moves no rank
by much. Of 100 clean series fewer than one gives an alarm (ALPHA for each test, and a change that matters).

A loss falls while all is well: there only a rise counts, of the median of a window over that of the window before,
beyond what windows of this very log differ by. It diverged where it left its lowest level and never came back to it:

loss  ·                 ·  ·      a spike comes back;
       ·  ×          ·            the last 8 values or more are above the limit: 8 deviations, 15%, and twice what it
        ·· ···· ·─·───────────    rose by (95 of 100 values) before
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ALPHA = 1e-4  # of one test
LEAST = 8  # values of a level
MATTERS, DEVIATIONS = 0.03, 1.5  # of the level; of the noise about it
SURE = 6.0  # standard errors of a slope
STAIRS = 1.2
MOST = 8  # shifts that are named
WINDOW, RISE, TIMES = 24, 0.15, 8.0  # values; of the median; of the windows' usual difference
NEAR, FAR = 3.0, 8.0  # deviations: of the lowest level still; beyond its noise


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
    one_way = len({change.after > change.before for change in changes}) < 2
    drift = _drift(x) if one_way else []
    return drift if drift and (not changes or _is_nearer(x, drift[0], bounds, levels)) else changes


def _split(x: np.ndarray, start: int, stop: int, most: int) -> list[int]:
    """Places of shifts between two others: one level and another, or one that comes back after a while."""
    n = stop - start
    if n < 2 * LEAST or most <= 0:
        return []
    part = x[start:stop]
    ranks = np.argsort(np.argsort(part, kind="stable"), kind="stable").astype(float)
    path = np.cumsum(ranks - ranks.mean())
    inside = path[LEAST - 1 : n - LEAST]
    ends = sorted((int(inside.argmin()) + LEAST, int(inside.argmax()) + LEAST))
    at = np.arange(LEAST, n - LEAST + 1)
    alone = np.abs(inside) / np.sqrt(at * (n - at) / n)
    for places, excursion, test in (
        ([int(np.abs(inside).argmax()) + LEAST], float(np.abs(inside).max()) / math.sqrt(n), _kolmogorov),
        (ends, float(np.ptp(inside)) / math.sqrt(n), _kuiper),
        ([int(alone.argmax()) + LEAST], float(alone.max()), lambda z: n * math.erfc(z / math.sqrt(2))),
    ):
        if _is_shift(part, ranks, places, excursion, test):
            bounds = [start, *(start + _refined(part, place) for place in places), stop]
            inner = (_split(x, a, b, most // 2) for a, b in pairwise(bounds))
            return sorted({*bounds[1:-1], *(place for found in inner for place in found)})
    return []


def _is_shift(
    part: np.ndarray, ranks: np.ndarray, places: Sequence[int], excursion: float, test: Callable[[float], float]
) -> bool:
    """Whether the levels on both sides of these places differ, by enough and beyond chance."""
    bounds = [0, *places, len(part)]
    if min(b - a for a, b in pairwise(bounds)) < LEAST:
        return False
    pieces = [part[a:b] for a, b in pairwise(bounds)]
    levels = [float(np.median(piece)) for piece in pieces]
    noise = 1.4826 * float(np.median(np.abs(np.concatenate([piece - np.median(piece) for piece in pieces]))))
    if min(abs(b - a) for a, b in pairwise(levels)) < max(math.log1p(MATTERS), DEVIATIONS * noise):
        return False
    rest = np.concatenate([ranks[a:b] - ranks[a:b].mean() for a, b in pairwise(bounds)])
    return test(excursion / math.sqrt((float(np.mean(rest**2)) or 1e-12) * _widened(rest))) <= ALPHA


def _refined(part: np.ndarray, place: int) -> int:
    """The place nearby that leaves the least distance from the levels before and after it."""
    reach = max(LEAST, len(part) // 20)  # the sum's peak is flat where the shift is near an end
    near = range(max(place - reach, 1), min(place + reach, len(part) - 1) + 1)
    before, after = np.median(part[:place]), np.median(part[place:])
    window = slice(near[0] - 1, near[-1] + 1)
    costs = np.cumsum(np.abs(part[window] - before) - np.abs(part[window] - after))
    return near[0] - 1 + int(costs.argmin()) + 1


def _kolmogorov(scaled: float) -> float:
    """How likely a Brownian bridge goes that far."""
    return min(2 * sum((-1.0) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 6)), 1.0)


def _kuiper(scaled: float) -> float:
    """How likely its range is that large."""
    return min(2 * sum((4 * (k * scaled) ** 2 - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 6)), 1.0)


def _drift(x: np.ndarray) -> list[Change]:
    """A slow growth over all of the series: a line whose slope is beyond what noise of its memory gives."""
    n = len(x)
    if n < 4 * LEAST:
        return []
    at = np.arange(n) - (n - 1) / 2
    third = n // 3  # Tukey's resistant line, to draw in what lies far from it: stalls
    line = np.median(x) + (np.median(x[-third:]) - np.median(x[:third])) / (n - third) * at
    reach = 3 * 1.4826 * float(np.median(np.abs(x - line)))
    x = line + np.clip(x - line, -reach, reach)
    slope = float(at @ x / (at @ at))
    rest = x - x.mean() - slope * at
    error = math.sqrt(float(rest @ rest) / (n - 2) / float(at @ at) * _widened(rest))
    first, last = (math.exp(float(np.median(x)) + slope * side * (n - 1) / 2) for side in (-1, 1))
    if abs(last / first - 1) < 2 * MATTERS or abs(slope) < SURE * error:
        return []
    return [Change(0, first, last, drift=True)]


def _is_nearer(x: np.ndarray, drift: Change, bounds: Sequence[int], levels: Sequence[float]) -> bool:
    """Whether a line is nearer to the values than the levels are."""
    line = np.linspace(math.log(drift.before), math.log(drift.after), len(x))
    stairs = np.repeat(np.log(levels), np.diff(bounds))
    several = 1.0 if len(levels) < 3 else STAIRS  # steps of a slow growth follow it closely, too
    return bool(np.abs(x - line).sum() < several * np.abs(x - stairs).sum())


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


def divergence(values: Sequence[float]) -> Change | None:
    """Where a loss left its lowest level for good, that level, and the last one; None where it came back, or stayed."""
    x = np.asarray(values, dtype=float)
    if len(x) < 2 * LEAST:
        return None
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(x, 2, mode="edge"), 5), axis=1)
    lowest = int(smooth[: len(x) - LEAST].argmin())
    level, steps = float(smooth[lowest]), np.diff(x)
    noise = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    limit = level + max(FAR * noise, RISE * abs(level))
    start = int(np.flatnonzero(smooth <= limit).max()) + 1
    if start > len(x) - LEAST:
        return None
    start = int(np.flatnonzero(smooth[:start] <= level + min(NEAR * noise, limit - level)).max()) + 1
    before = smooth[:start]
    usual = float(np.quantile(before - np.minimum.accumulate(before), 0.95))
    after = float(np.median(x[-LEAST:]))
    return Change(start, level, after) if smooth[-LEAST:].min() > level + 2 * usual else None
