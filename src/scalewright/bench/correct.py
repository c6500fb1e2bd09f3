"""A profile corrected by runs: how much longer kernels and messages take in a step than it has them.

    runs, by predicted time:  1  2  3  4  5  6 ...
    fitted to                 x     x     x         the other half is predicted anew, and scored
    written                   fitted to all of them

    sum over runs (predicted(kernels, messages) / measured - 1)²  +  PRIOR ((kernels - 1)² + (messages - 1)²)

is made least by Gauss-Newton: a few rounds of predictions with the curves' seconds multiplied. The second
term draws towards 1 what the runs tell little about: without messages, those stay as they are. The interval
is a bootstrap's over runs. Nothing else of the planner changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.spec.common.formatting import counted
from scalewright.spec.common.untrusted import parse_json, read_bytes
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.timings import MESSAGES, TimingCurve

PRIOR = 0.1**2  # predictions are off by some 10% when both are right, and factors by some 100%
ROUNDS = 4
STEP = 0.1  # of a factor, to see what it changes
FEWEST = 4  # runs: two to fit, two to score
COLD = 3  # steps of a run that set up memory and kernels
LIMITS = (0.05, 20.0)
DRAWS = 300
METRICS_BYTES = 1 << 28


@dataclass(frozen=True)
class Factors:
    """What the seconds of a profile's curves are multiplied by."""

    kernels: float = 1.0
    messages: float = 1.0


Predict = Callable[[Path, ClusterSpec], float]  # a run's step, in seconds
Price = Callable[[Factors], Sequence[float]]  # of every run, with a profile corrected so


def measured_step(folder: Path) -> float:
    """The median step of a run folder, in seconds, its first steps left out; raises UserError."""
    place = folder / "metrics.jsonl"
    try:
        lines = read_bytes(place, METRICS_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        how = "give folders that `scalewright train` wrote"
        raise UserError(f"no steps to read: {error.strerror}", str(place), how) from None
    steps = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:  # a run that was cut while it wrote
            continue
        seconds = row.get("step_time_s") if isinstance(row, dict) and row.get("kind") == "train" else None
        if isinstance(seconds, float) and 0 < seconds < 1e9:
            steps.append(seconds)
    if len(steps) < 2 * COLD:
        raise UserError(f"{counted(len(steps), 'timed steps')}", str(place), f"train for {2 * COLD} or more")
    return statistics.median(steps[COLD:])


def correct(cluster: ClusterSpec, factors: Factors) -> ClusterSpec:
    """The profile with its curves' seconds multiplied; raises UserError for one without curves."""
    if cluster.measured is None or cluster.measured.timings is None:
        how = "calibrate a CPU's profile (`scalewright bench all --out FILE`)"
        raise UserError("this profile holds no curves of kernels to correct", cluster.name, how)
    timings = cluster.measured.timings

    def factor(curve: TimingCurve) -> float:
        return factors.messages if curve.what in MESSAGES else factors.kernels

    curves = [curve.replace(seconds=[factor(curve) * s for s in curve.seconds]).dump() for curve in timings.curves]
    return cluster.replace(measured={**cluster.measured.dump(), "timings": timings.replace(curves=curves).dump()})


@dataclass(frozen=True)
class Tangent:
    """Predicted seconds of each run near some factors: `seconds` there, and what a factor more adds."""

    factors: np.ndarray  # [2]
    seconds: np.ndarray  # [runs]
    slopes: np.ndarray  # [runs, 2]

    def solve(self, measured: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The factors of least relative error over these rows of the runs."""
        goal = measured[rows] - self.seconds[rows] + self.slopes[rows] @ self.factors
        pull = PRIOR**0.5 * np.eye(2)
        terms = np.concatenate([self.slopes[rows] / measured[rows, None], pull])
        ends = np.concatenate([goal / measured[rows], np.diag(pull)])
        return np.asarray(np.clip(np.linalg.lstsq(terms, ends, rcond=None)[0], *LIMITS))


def tangent(price: Price, factors: np.ndarray) -> Tangent:
    """What the predictions are at these factors, and how they change."""
    here = np.array(price(Factors(*factors)))
    slopes = [(np.array(price(Factors(*(factors + STEP * side)))) - here) / STEP for side in np.eye(2)]
    return Tangent(factors, here, np.stack(slopes, axis=1))


def fit(price: Price, measured: Sequence[float]) -> tuple[Factors, Tangent]:
    """The factors of least relative error, and the last round's tangent; seconds."""
    goal, factors = np.asarray(measured, dtype=float), np.ones(2)
    for _ in range(ROUNDS):
        near = tangent(price, factors)
        factors = near.solve(goal, np.arange(len(goal)))
    return Factors(*factors.tolist()), near


def calibrate(
    folders: Sequence[Path], cluster: ClusterSpec, predict: Predict, seed: int = 0
) -> tuple[dict[str, object], ClusterSpec]:
    """What the runs teach, and the corrected profile; raises UserError for too few runs."""
    folders = list(dict.fromkeys(folders))
    if len(folders) < FEWEST:
        how = f"give {FEWEST} or more: half of them are left out to score the correction"
        raise UserError(f"too few runs to learn from: {len(folders)}", "RUN_DIR", how)
    before = {folder: predict(folder, cluster) for folder in folders}
    runs = sorted(before, key=lambda folder: before[folder])
    measured = {folder: measured_step(folder) for folder in runs}

    def learn(some: Sequence[Path]) -> tuple[Factors, Tangent]:
        def price(factors: Factors) -> list[float]:
            place = correct(cluster, factors)
            return [predict(folder, place) for folder in some]

        return fit(price, [measured[folder] for folder in some])

    learned, _ = learn(runs[::2])
    trial = correct(cluster, learned)
    scored = []
    for folder in runs[1::2]:
        times = {"measured_s": measured[folder], "before_s": before[folder], "after_s": predict(folder, trial)}
        scored.append({"run": str(folder), **times})
    factors, near = learn(runs)
    answer = {
        "factors": vars(factors),
        "interval": _interval(near, [measured[folder] for folder in runs], seed),
        "fitted_to": [str(folder) for folder in runs[::2]],
        "fitted_factors": vars(learned),
        "scored_on": scored,
        "median_error_before": _error(scored, "before_s"),
        "median_error_after": _error(scored, "after_s"),
    }
    words = f"calibrated by {len(runs)} runs: kernels x {factors.kernels:.2f}, messages x {factors.messages:.2f}"
    return answer, correct(cluster, factors).replace(notes=[*cluster.notes, words])


def _interval(near: Tangent, measured: Sequence[float], seed: int) -> dict[str, list[float]]:
    """The 5th and 95th percentile of fits to runs drawn with replacement."""
    generator, goal = np.random.default_rng(seed), np.asarray(measured, dtype=float)
    draws = [near.solve(goal, generator.integers(len(goal), size=len(goal))) for _ in range(DRAWS)]
    kernels, messages = np.percentile(np.stack(draws), (5, 95), axis=0).T.tolist()
    return {"kernels": kernels, "messages": messages}


def _error(scored: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(abs(row[key] / row["measured_s"] - 1) for row in scored))
