"""The time of a message as a start and a rate, with the confidence of both.

    seconds = alpha + bytes / beta         alpha: s, beta: bytes/s

      seconds │          ╱ slope 1 / beta
              │      ·╱
              │  ·╱
        alpha │╱
              └───────────── bytes

Least squares of relative errors (each point weighs 1 / seconds squared: a small message counts as much as a
large one), neither term below zero. The interval is a bootstrap's (Efron 1979): points, and the repetitions
of each, are drawn again with replacement; the 5th and 95th percentile of the fits are given. It includes
what a line doesn't describe only as far as that varies from size to size: `error` is the median deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 300
LOW, HIGH = 5, 95  # percentiles of the interval
Interval = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A start (s) and a rate (bytes/s), each with its interval; no rate where larger took no longer."""

    start_s: float
    start_interval_s: Interval
    bytes_per_s: float | None
    interval_bytes_per_s: tuple[float | None, float | None]
    error: float  # median of |fitted / measured - 1|
    points: int


def fit_line(sizes: Sequence[float], seconds: Sequence[Sequence[float]], seed: int = 0) -> Line | None:
    """The line through the medians of `seconds[i]`, repetitions of a message of `sizes[i]` bytes.

    None with fewer than three sizes: two points fit any line, and a bootstrap of them is no interval.
    """
    if len(set(sizes)) < 3:
        return None
    bytes_of = np.asarray(sizes, dtype=float)
    medians = np.array([np.median(repeated) for repeated in seconds])
    start, slope = _solve(bytes_of, medians)
    generator = np.random.default_rng(seed)
    draws = np.array([_draw(bytes_of, seconds, generator) for _ in range(DRAWS)])
    starts = np.percentile(draws[:, 0], (LOW, HIGH))
    slopes = np.percentile(draws[:, 1], (HIGH, LOW))
    fitted = start + slope * bytes_of
    return Line(
        start_s=start,
        start_interval_s=(float(starts[0]), float(starts[1])),
        bytes_per_s=_inverse(slope),
        interval_bytes_per_s=(_inverse(float(slopes[0])), _inverse(float(slopes[1]))),
        error=float(np.median(np.abs(fitted / medians - 1))),
        points=len(sizes),
    )


def _draw(sizes: np.ndarray, seconds: Sequence[Sequence[float]], generator: np.random.Generator) -> tuple[float, float]:
    """A fit to points drawn with replacement, two sizes at least, each the median of drawn repetitions."""
    picked = generator.integers(len(sizes), size=len(sizes))
    while len(set(sizes[picked])) < 2:
        picked = generator.integers(len(sizes), size=len(sizes))
    medians = [np.median(generator.choice(np.asarray(seconds[index]), len(seconds[index]))) for index in picked]
    return _solve(sizes[picked], np.array(medians))


def _solve(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(alpha, 1 / beta) of the least relative error; a term that would be below zero is zero."""
    ones, steps = 1 / seconds, sizes / seconds
    both = np.linalg.lstsq(np.stack([ones, steps / sizes.max()], axis=1), np.ones(len(sizes)), rcond=None)[0]
    start, slope = float(both[0]), float(both[1] / sizes.max())
    if start < 0:
        return 0.0, float(steps.sum() / (steps @ steps))
    if slope < 0:
        return float(ones.sum() / (ones @ ones)), 0.0
    return start, slope


def _inverse(slope: float) -> float | None:
    return 1 / slope if slope > 0 else None
