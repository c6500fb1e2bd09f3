"""A profile of one's own machine and trainer from a few of one's own runs: `score --fit K`.

    the shipped constants --(a few runs)--> the same, with the rates of this device, host and links moved

Only what these runs can tell is moved: the generation's matrix products, its memory-bound kernels and
attention, the host, the links, stragglers. Everything is pulled to the shipped value, and how hard is what
predicts some of the runs best from the others: runs that have little in common move nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.constants import Constants, Fact, constants, facts
from scalewright.plan.cost.evaluate import prepare
from scalewright.plan.measured.fit import evaluate_seconds, problem, solve
from scalewright.plan.measured.runs import Runs

HOST = ("host.launch", "host.step", "wait.straggler")
LINKS = ("link.fast", "link.fabric", "overlap.dp", "overlap.tp")
KERNELS = ("shape.depth", "shape.wave", "kernel.square")
# Of one's own run against what was known: the square root of how many sources it counts for.
WEIGHTS = (0.0, 0.25, 0.7)
FOLDS = 4


def free_facts(runs: Runs) -> tuple[Fact, ...]:
    """The constants that these runs may move, around their shipped values, a little beyond the range."""
    families = {request.chip.family.kernels.name for request in runs.requests}
    kernels = {request.framework.kernels for request in runs.requests}
    names = {*HOST, *LINKS, *KERNELS}
    names |= {f"{kind}.{family}" for kind in ("matmul", "attention") for family in families}
    names |= {f"passes.{kind}" for kind in kernels}
    now = constants()
    found = []
    for fact in facts():
        if fact.name in names:
            span = 0.3 * (fact.high - fact.low)
            low = max(min(fact.low, now[fact.name] - span), 0.3 * fact.low)
            found.append(
                replace(fact, prior=now[fact.name], low=low, high=max(fact.high, now[fact.name] + span))
            )
    return tuple(found)


def profile(runs: Runs, most: int = 40) -> Constants:
    """The constants of a machine and trainer, from at most `most` of its own runs."""
    runs = runs.take(spaced(runs, most))
    if len(runs) < 2:
        return _fitted(runs, WEIGHTS[1])
    errors = [_crossed(runs, weight) for weight in WEIGHTS]
    return _fitted(runs, WEIGHTS[int(np.argmin(errors))])


def _fitted(runs: Runs, weight: float) -> Constants:
    if weight == 0:
        return constants()
    task = problem(runs, free=free_facts(runs))
    return solve(replace(task, weight=np.full(len(task.log_seconds), weight)))


def _crossed(runs: Runs, weight: float) -> float:
    """The mean absolute error of log seconds of runs that were held out of a fit on the others, by turns."""
    order = np.argsort(runs.seconds, kind="stable")
    fold = np.empty(len(runs), dtype=int)
    fold[order] = np.arange(len(runs)) % min(FOLDS, len(runs))
    error = np.empty(len(runs))
    for turn in range(int(fold.max()) + 1):
        held = fold == turn
        mine = runs.take(held)
        seconds = evaluate_seconds(prepare(mine.requests), _fitted(runs.take(~held), weight))
        error[held] = np.abs(np.log(seconds / mine.seconds))
    return float(error.mean())


def spaced(runs: Runs, many: int) -> np.ndarray:
    """`many` usable rows, evenly spaced through the step times: a mask over the runs."""
    use = np.flatnonzero(runs.plain)
    order = use[np.argsort(runs.seconds[use], kind="stable")]
    mask = np.zeros(len(runs), dtype=bool)
    mask[order[np.unique(np.linspace(0, len(order) - 1, min(many, len(order))).round().astype(int))]] = True
    return mask


def held_out_error(runs: Runs, many: int) -> dict[str, float]:
    """Fits a profile on `many` runs and compares the rest: errors in percent, before and after."""
    chosen = spaced(runs, many)
    fitted = profile(runs.take(chosen))
    rest = ~chosen & runs.plain
    if not rest.any():
        return {"fitted_on": int(chosen.sum()), "rows": 0}
    prepared = prepare(runs.requests)
    before, after = (
        np.abs(evaluate_seconds(prepared, c) / runs.seconds - 1)[rest] for c in (constants(), fitted)
    )
    return {
        "fitted_on": int(chosen.sum()),
        "rows": int(rest.sum()),
        "before_median_error_pct": 100 * float(np.median(before)),
        "median_error_pct": 100 * float(np.median(after)),
        "mape_pct": 100 * float(np.mean(after)),
    }
