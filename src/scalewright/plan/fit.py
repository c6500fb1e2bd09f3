"""The fitted constants, found again from measured runs: `python -m scalewright.plan.fit [--write]`.

    minimise   sum over sources of  mean of  rho( (log predicted - log measured) / 0.1 )   +   sum ((c - prior) / range)^2

Every source weighs the same, whatever its rows; rho is robust, so that single odd rows don't decide; each constant is
held to its physical range and pulled to what is known of it. What is reported is the error on sources, model
families and device generations that were left out of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.plan.constants import Constants, Fact, constants, facts
from scalewright.plan.evaluate import Prepared, evaluate, prepare
from scalewright.plan.runs import Runs

SCALE = 0.1  # an error of 10% counts as one unit of misfit
PRIOR = 0.35  # a quarter to a half of a constant's range counts as one unit


@dataclass(frozen=True)
class Problem:
    """Rows with their weights, ready to be priced again and again."""

    prepared: Prepared
    log_seconds: np.ndarray
    weight: np.ndarray
    free: tuple[Fact, ...]
    base: Constants


def problem(runs: Runs, free: Sequence[Fact] | None = None, base: Constants | None = None, most: int = 150) -> Problem:
    """The rows of a fit: at most `most` of a source, evenly spaced through its rows."""
    use = np.isfinite(runs.seconds) & ~runs.apart & ~runs.converted
    index = []
    for source in dict.fromkeys(runs.source[use]):
        at = np.flatnonzero(use & (runs.source == source))
        index.append(at[np.unique(np.linspace(0, len(at) - 1, min(most, len(at))).astype(int))])
    some = runs.take(np.concatenate(index))
    counts = {source: int((some.source == source).sum()) for source in set(some.source)}
    weight = np.array([min(1.0, counts[s] / 5) / counts[s] for s in some.source])
    chosen = tuple(free) if free is not None else tuple(fact for fact in facts() if fact.fitted)
    return Problem(prepare(some.requests), np.log(some.seconds), np.sqrt(weight), chosen, base or constants())


def solve(task: Problem, start: Constants | None = None, evaluations: int = 8) -> Constants:
    """The constants that fit best."""
    from scipy.optimize import least_squares

    low = np.array([fact.low for fact in task.free])
    high = np.array([fact.high for fact in task.free])
    prior = np.array([fact.prior for fact in task.free])
    span = high - low
    first = np.array([(start or task.base)[fact.name] for fact in task.free])

    def misfit(z: np.ndarray) -> np.ndarray:
        c = task.base.with_values(dict(zip((f.name for f in task.free), low + z * span, strict=True)))
        error = (np.log(evaluate_seconds(task.prepared, c)) - task.log_seconds) / SCALE
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))  # soft L1
        return np.concatenate([task.weight * robust, (z - (prior - low) / span) / PRIOR * 0.3])

    z = np.clip((first - low) / span, 0.01, 0.99)
    found = least_squares(misfit, z, bounds=(0, 1), diff_step=1e-3, max_nfev=evaluations, method="trf")
    return task.base.with_values(dict(zip((f.name for f in task.free), low + found.x * span, strict=True)))


def evaluate_seconds(prepared: Prepared, c: Constants) -> np.ndarray:
    """Predicted seconds of every row."""
    return evaluate(prepared, c, with_memory=False).step.seconds
