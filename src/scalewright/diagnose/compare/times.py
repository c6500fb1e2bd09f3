"""Whether steps became slower by more than their own spread.

    change     = median(now) / median(then) - 1
    interval   = 2.5% to 97.5% of that over resampled steps (Efron 1979, the percentile bootstrap)

Steps are taken as independent; a machine that is slow for minutes isn't seen by it. Below `LEAST` steps on
either side nothing is said of noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST = 5  # steps
RESAMPLED = 2000
SEED = 0  # the same answer for the same files


@dataclass(frozen=True)
class Change:
    """Two medians in seconds; `interval`: percent of change, or None; `beyond_noise`: None where unknown."""

    before: float
    now: float
    interval: tuple[float, float] | None

    @property
    def percent(self) -> float:
        """By how much it became slower."""
        return 100 * (self.now / self.before - 1)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval excludes no change."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]

    def dump(self) -> dict[str, Any]:
        """The keys of `against` in `diagnose --json`."""
        return {
            "before_s": self.before,
            "now_s": self.now,
            "change_pct": self.percent,
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
