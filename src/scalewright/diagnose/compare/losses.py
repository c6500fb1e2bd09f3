"""Whether a loss curve leaves another run's by more than its noise.

    d      = loss now - loss then, at the steps that both have
    noise  = 1.4826 · median |d(k+1) - d(k)| / sqrt(2)        which a slow drift hardly changes
    apart  = mean of d over the last quarter, beyond `DEVIATIONS` · noise / sqrt(steps of it)
             and beyond `LEAST_SHARE` of the loss

Assumes that what differs from step to step (order of the data, rounding) is independent between steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DEVIATIONS = 4.0
LEAST_SHARE = 0.002
LEAST_STEPS = 16  # in common; a quarter of them is compared


def losses_apart(before: Mapping[int, float], now: Mapping[int, float]) -> dict[str, Any] | None:
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
    limit = DEVIATIONS * _noise(apart) / np.sqrt(len(apart[last]))
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
    return {
        step["step"]: step["loss"] for step in steps if step["loss"] is not None and step["step"] is not None
    }


def _noise(apart: np.ndarray) -> float:
    return float(1.4826 * np.median(np.abs(np.diff(apart))) / np.sqrt(2))
