"""Fits the constants to one's own machine and trainer, from a few runs: `score --fit K`.

    shipped constants --(a few runs)--> constants with the rates of this device, host and links changed

Only constants that these runs depend on change: the generation's matrix products, memory-bound kernels and
attention, the host, the links, stragglers. All are regularised towards the shipped values; cross-validation
over the runs chooses how strongly, so that runs with little in common change nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.constants import Constants, Fact, constants, facts
from scalewright.plan.cost.evaluate import prepare
from scalewright.plan.fitting.fit import evaluate_seconds, problem, solve
from scalewright.plan.fitting.runs import Runs

HOST = ("host.launch", "host.step", "wait.straggler")
LINKS = ("link.fast", "link.fabric", "overlap.dp", "overlap.tp")
KERNELS = ("shape.depth", "shape.wave", "kernel.square")
# Weights of one run against the priors, to choose from: square roots of the sources that it counts for.
WEIGHTS = (0.0, 0.25, 0.7)
FOLDS = 4


def free_facts(runs: Runs) -> tuple[Fact, ...]:
    """The constants that these runs may change, with the shipped values as priors and wider ranges."""
    families = {request.chip.family.kernels.name for request in runs.requests}
    kernels = {request.framework.kernels for request in runs.requests}
    names = {*HOST, *LINKS, *KERNELS}
    names |= {f"{kind}.{family}" for kind in ("matmul", "attention") for family in families}
    names |= {f"passes.{kind}" for kind in kernels}
    free = []
    for fact in facts():
        if fact.name in names:
            shipped, span = constants()[fact.name], 0.3 * (fact.high - fact.low)
            low = max(min(fact.low, shipped - span), 0.3 * fact.low)
            free.append(replace(fact, prior=shipped, low=low, high=max(fact.high, shipped + span)))
    return tuple(free)


def profile(runs: Runs, most: int = 40) -> Constants:
    """The constants of a machine and trainer, from at most `most` of its own runs."""
    runs = runs.take(spaced(runs, most))
    if len(runs) < 2:
        return _fitted(runs, WEIGHTS[1])
    errors = [_validation_error(runs, weight) for weight in WEIGHTS]
    return _fitted(runs, WEIGHTS[int(np.argmin(errors))])


def changed(fitted: Constants) -> dict[str, float]:
    """The constants that a fit moved, with their values: what a cluster file keeps."""
    shipped = constants().values
    return {name: value for name, value in fitted.values.items() if value != shipped[name]}


def _fitted(runs: Runs, weight: float) -> Constants:
    if weight == 0:
        return constants()
    task = problem(runs, free=free_facts(runs))
    return solve(replace(task, weight=np.full(len(task.log_seconds), weight)))


def _validation_error(runs: Runs, weight: float) -> float:
    """The cross-validated error of a fit with this weight: the mean absolute error of log seconds."""
    order, fold = np.argsort(runs.seconds, kind="stable"), np.empty(len(runs), dtype=int)
    fold[order] = np.arange(len(runs)) % min(FOLDS, len(runs))
    error = np.empty(len(runs))
    for turn in range(int(fold.max()) + 1):
        held_out = fold == turn
        tested = runs.take(held_out)
        seconds = evaluate_seconds(prepare(tested.requests), _fitted(runs.take(~held_out), weight))
        error[held_out] = np.abs(np.log(seconds / tested.seconds))
    return float(error.mean())


def spaced(runs: Runs, count: int) -> np.ndarray:
    """A mask of `count` usable runs, evenly spaced through the step times."""
    use = np.flatnonzero(runs.plain)
    order = use[np.argsort(runs.seconds[use], kind="stable")]
    mask = np.zeros(len(runs), dtype=bool)
    mask[order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))]] = True
    return mask


def held_out_error(runs: Runs, count: int) -> dict[str, float]:
    """Errors in percent, before and after a fit to `count` of the runs, on the others."""
    chosen = spaced(runs, count)
    fitted = profile(runs.take(chosen))
    rest = ~chosen & runs.plain
    if not rest.any():
        return {"fitted_on": int(chosen.sum()), "rows": 0}
    prepared = prepare(runs.requests)
    before, after = (np.abs(evaluate_seconds(prepared, c) / runs.seconds - 1)[rest] for c in (constants(), fitted))
    return {
        "fitted_on": int(chosen.sum()),
        "rows": int(rest.sum()),
        "before_median_error_pct": 100 * float(np.median(before)),
        "median_error_pct": 100 * float(np.median(after)),
        "mape_pct": 100 * float(np.mean(after)),
    }
