"""A profile corrected by runs: how much more the kernels and the messages of a step take than it has them.

    measured step = kernels * (compute, recomputation, bubble, optimizer, rest) + messages * (what is exposed)

    runs, by predicted time:  1  2  3  4  5  6 ...
    fitted to                 x     x     x         the other half is predicted anew, and scored
    written                   fitted to all of them

Least squares of relative errors, drawn towards 1 as by `PRIOR` runs that were predicted exactly: few runs
correct little, and runs without messages leave them as they are. The interval is a bootstrap's over runs. The
factors multiply the seconds of the profile's curves; nothing else of the planner changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.text.untrusted import parse_json, read_bytes

MESSAGES = ("all_reduce", "all_gather", "reduce_scatter", "send")
EXPOSED = ("tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_exposed")
PRIOR = 0.5
FEWEST = 4  # runs: two to fit, two to score
COLD = 3  # steps of a run that set up memory and kernels
LIMITS = (0.05, 20.0)
DRAWS = 300
METRICS_BYTES = 1 << 28
Predict = Callable[[Path, ClusterSpec], Mapping[str, float]]  # a run's breakdown, in seconds


@dataclass(frozen=True)
class Factors:
    """What the seconds of a profile's curves are multiplied by."""

    kernels: float = 1.0
    messages: float = 1.0


def measured_step(folder: Path) -> float:
    """The median step of a run folder, in seconds, its first steps left out; raises UserError."""
    place = folder / "metrics.jsonl"
    try:
        lines = read_bytes(place, METRICS_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        how = "give folders that `scalewright train` wrote"
        raise UserError(f"no steps to read: {error.strerror}", str(place), how) from None
    steps: list[float] = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:  # a run that was cut while it wrote
            continue
        seconds = row.get("step_time_s") if isinstance(row, dict) and row.get("kind") == "train" else None
        if isinstance(seconds, float) and 0 < seconds < 1e9:
            steps.append(seconds)
    if len(steps) < 2 * COLD:
        raise UserError(f"{len(steps)} timed steps", str(place), f"train for {2 * COLD} or more")
    return statistics.median(steps[COLD:])


def correct(cluster: ClusterSpec, factors: Factors) -> ClusterSpec:
    """The profile with its curves' seconds multiplied; raises UserError for one without curves."""
    if cluster.measured is None or cluster.measured.timings is None:
        how = "calibrate a CPU's profile (`scalewright bench all --out FILE`)"
        raise UserError("this profile holds no curves of kernels to correct", cluster.name, how)
    timings = cluster.measured.timings

    def scaled(curve: Any) -> Any:
        factor = factors.messages if curve.what in MESSAGES else factors.kernels
        return curve.replace(seconds=[factor * seconds for seconds in curve.seconds])

    new = timings.replace(curves=[scaled(curve).dump() for curve in timings.curves])
    return cluster.replace(measured={**cluster.measured.dump(), "timings": new.dump()})


def fit(breakdowns: Sequence[Mapping[str, float]], measured: Sequence[float]) -> Factors:
    """The factors of least relative error; seconds."""
    whole = np.asarray(measured, dtype=float)
    exposed = np.array([sum(parts.get(name, 0.0) for name in EXPOSED) for parts in breakdowns])
    rest = np.array([sum(parts.values()) for parts in breakdowns]) - exposed
    pull = PRIOR**0.5 * np.eye(2)
    terms = np.concatenate([np.stack([rest / whole, exposed / whole], axis=1), pull])
    goal = np.concatenate([np.ones(len(whole)), np.diag(pull)])
    kernels, messages = np.clip(np.linalg.lstsq(terms, goal, rcond=None)[0], *LIMITS)
    return Factors(float(kernels), float(messages))


def calibrate(
    folders: Sequence[Path], cluster: ClusterSpec, predict: Predict, seed: int = 0
) -> tuple[dict[str, Any], ClusterSpec]:
    """What the runs teach, and the corrected profile; raises UserError for too few runs."""
    if len(folders) < FEWEST:
        how = f"give {FEWEST} or more: half of them are left out to score the correction"
        raise UserError(f"{len(folders)} runs are too few to learn from", "RUN_DIR", how)
    runs = sorted(
        ((folder, measured_step(folder), predict(folder, cluster)) for folder in folders),
        key=lambda run: sum(run[2].values()),
    )
    half, rest = runs[::2], runs[1::2]
    learned = fit([parts for _, _, parts in half], [seconds for _, seconds, _ in half])
    trial = correct(cluster, learned)
    scored = [
        {
            "run": str(folder),
            "measured_s": seconds,
            "before_s": sum(parts.values()),
            "after_s": sum(predict(folder, trial).values()),
        }
        for folder, seconds, parts in rest
    ]
    factors = fit([parts for _, _, parts in runs], [seconds for _, seconds, _ in runs])
    answer = {
        "factors": vars(factors),
        "interval": _interval(runs, seed),
        "fitted_to": [str(folder) for folder, _, _ in half],
        "fitted_factors": vars(learned),
        "scored_on": scored,
        "median_error_before": _error(scored, "before_s"),
        "median_error_after": _error(scored, "after_s"),
    }
    return answer, correct(cluster, factors)


def _interval(runs: Sequence[tuple[Path, float, Mapping[str, float]]], seed: int) -> dict[str, list[float]]:
    """The 5th and 95th percentile of fits to runs drawn with replacement."""
    generator = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        drawn = [runs[index] for index in generator.integers(len(runs), size=len(runs))]
        draws.append(fit([parts for _, _, parts in drawn], [seconds for _, seconds, _ in drawn]))
    return {
        name: [float(edge) for edge in np.percentile([getattr(draw, name) for draw in draws], (5, 95))]
        for name in ("kernels", "messages")
    }


def _error(scored: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(abs(row[key] / row["measured_s"] - 1) for row in scored)
