"""Whether steps became slower, or a loss curve leaves another run's, by more than noise.

Of steps:

    change     = median(now) / median(then) - 1
    interval   = 2.5% to 97.5% of that over resampled steps (Efron 1979, the percentile bootstrap)

Steps are taken as independent; a machine that is slow for minutes isn't seen by it. Below `LEAST` steps on either side
nothing is said of noise.

Of a loss curve:

    d      = loss now - loss then, at the steps that both have
    noise  = 1.4826 · median |d(k+1) - d(k)| / sqrt(2)        which a slow drift hardly changes
    apart  = mean of d over the last quarter, beyond `DEVIATIONS` · noise / sqrt(steps of it)
             and beyond `LEAST_SHARE` of the loss

Assumes that what differs from step to step (order of the data, rounding) is independent between steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST = 5  # steps
RESAMPLED = 2000
SEED = 0  # the same answer for the same files
DEVIATIONS = 4.0
LEAST_SHARE = 0.002
LEAST_STEPS = 16  # in common; a quarter of them is compared


@dataclass(frozen=True)
class Change:
    """Two medians in seconds; `interval`: percent of change, or None; `beyond_noise`: None where unknown."""

    before: float
    now: float
    interval: tuple[float, float] | None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval excludes no change."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]

    def dump(self) -> dict[str, object]:
        """The keys of `against` in `diagnose --json`."""
        return {
            "before_s": self.before,
            "now_s": self.now,
            "change_pct": 100 * (self.now / self.before - 1),
            "interval_pct": list(self.interval) if self.interval else None,
            "beyond_noise": self.beyond_noise,
        }


def change(before: Sequence[float], now: Sequence[float]) -> Change | None:
    """The change of steps' times, in seconds; None where either has none."""
    if not len(before) or not len(now):
        return None
    first, second = float(np.median(before)), float(np.median(now))
    if first <= 0:
        return None
    if min(len(before), len(now)) < LEAST:
        return Change(first, second, None)
    chance = np.random.default_rng(SEED)
    ratios = _medians(np.asarray(now), chance) / _medians(np.asarray(before), chance)
    low, high = (100 * (float(x) - 1) for x in np.quantile(ratios, (0.025, 0.975)))
    return Change(first, second, (low, high))


def _medians(times: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Medians of resampled steps [RESAMPLED], in pieces that stay small for long runs."""
    return np.array([np.median(chance.choice(times, len(times))) for _ in range(RESAMPLED)])


def losses_apart(before: Mapping[int, float], now: Mapping[int, float]) -> dict[str, object] | None:
    """The comparison of losses by step, or None where the runs have too few steps in common."""
    common = sorted(before.keys() & now.keys())
    if len(common) < LEAST_STEPS:
        return None
    then, here = (np.array([losses[step] for step in common]) for losses in (before, now))
    finite = np.isfinite(then) & np.isfinite(here)
    if finite.sum() < LEAST_STEPS:
        return None
    steps, then, here = np.array(common)[finite], then[finite], here[finite]
    apart = here - then
    last = slice(-(len(apart) // 4), None)
    mean, usual = float(apart[last].mean()), float(np.abs(then[last]).mean())
    noise = 1.4826 * np.median(np.abs(np.diff(apart))) / np.sqrt(2)
    limit = DEVIATIONS * float(noise) / np.sqrt(len(apart[last]))
    return {
        "steps": len(steps),
        "from_step": int(steps[last][0]),
        "before": float(then[last].mean()),
        "now": float(here[last].mean()),
        "noise": float(limit),
        "beyond_noise": bool(abs(mean) > max(limit, LEAST_SHARE * usual)),
    }


def by_step(steps: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The losses of a log by their steps; the last one where a restart went over a step again."""
    return {step["step"]: step["loss"] for step in steps if step["loss"] is not None and step["step"] is not None}
