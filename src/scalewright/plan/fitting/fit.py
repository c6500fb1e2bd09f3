"""Fits the constants to measured runs; the shipped ones by comparisons/fit_constants.py.

    minimise    sum over sources of the mean of rho( (log predicted - log measured) / 0.1 )
              + sum over constants of ((c - prior) / range)^2

Every source has the same weight, whatever its number of rows; rho is robust against outliers; each constant
stays in its physical range and is regularised towards its prior. The reported errors are cross-validated:
lineages of trainers, clusters, sources, model families and device generations are left out of the fit in turn. NeMo,
Megatron, Megatron-Bridge and their forks are one lineage; runs of one operator on one kind of device are one cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.plan.constants import FILE, Constants, Fact, constants, facts
from scalewright.plan.cost.evaluate import Prepared, evaluate_time, prepare
from scalewright.plan.fitting.runs import Runs, once_a_layout, runs_of
from scalewright.plan.frameworks import OTHER
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import text
from scalewright.plan.rows.rows import NO_PRICE
from scalewright.spec.base import read_yaml
from scalewright.spec.model import ModelSpec

LEFT_OUT = ("lineage", "cluster", "source", "family", "generation")
OPERATORS = FILE.with_name("operators.yaml")  # who ran the runs of a source
UNSTEADY = re.compile(r"whole-run average|single iteration")
SCALE = 0.1  # an error of 10% is one unit of misfit
PRIOR = 1.0  # units of misfit for a constant that is its whole range away from its prior


@dataclass(frozen=True)
class Problem:
    """A least-squares problem: prepared rows with their weights and sources, and the constants that are free."""

    source: np.ndarray
    prepared: Prepared
    log_seconds: np.ndarray
    weight: np.ndarray
    free: tuple[Fact, ...]
    base: Constants


def unconfirmed(runs: Runs) -> np.ndarray:
    """Rows whose experts go over a kind of network whose rate for that was read off one source, and isn't fitted."""
    single = [fact.name.split(".") for fact in facts() if fact.one_source and not fact.fitted]
    kinds = {name for group, name in single if group in ("exchange", "dispatch")}
    return np.array([request.ep > 1 and request.chip.fabric_kind in kinds for request in runs.requests], dtype=bool)


def problem(runs: Runs, free: Sequence[Fact] | None = None, base: Constants | None = None, most: int = 150) -> Problem:
    """The problem of these runs: at most `most` rows of a source, evenly spaced through it."""
    # the score uses all rows; an average over a whole run includes failures and checkpoints, an early step the start-up
    steady = np.array([not UNSTEADY.search(text(row, "notes")) for row in runs.rows], dtype=bool)
    # nor would a constant be right that stands for what has no price, or one that nobody else has confirmed
    steady &= np.array([not any(NO_PRICE in line for line in request.assumed) for request in runs.requests], dtype=bool)
    steady &= ~unconfirmed(runs)
    use = runs.plain & steady if (runs.plain & steady).any() else runs.plain
    index = []
    for source in dict.fromkeys(runs.source[use]):
        rows = np.flatnonzero(use & (runs.source == source))
        index.append(rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))])
    runs = runs.take(np.concatenate(index))
    layout, weight = runs.layout, np.empty(len(runs))
    for source in set(runs.source):
        rows = runs.source == source
        weight[rows] = min(1.0, rows.sum() / 5) / len(np.unique(layout[rows]))
    weight /= np.bincount(layout)[layout]
    free = tuple(free) if free is not None else tuple(fact for fact in facts() if fact.fitted)
    return Problem(
        runs.source, prepare(runs.requests), np.log(runs.seconds), np.sqrt(weight), free, base or constants()
    )


def solve(task: Problem, start: Constants | None = None, steps: int = 12) -> Constants:
    """The constants that fit best, in their ranges, by Levenberg-Marquardt on those that no bound holds."""
    names = [fact.name for fact in task.free]
    low, high, prior = np.array([(fact.low, fact.high, fact.prior) for fact in task.free]).reshape(-1, 3).T
    span = high - low
    prior = (prior - low) / span
    z = (np.array([(start or task.base)[name] for name in names]) - low) / span

    def constants_at(z: np.ndarray) -> Constants:
        return task.base.with_values(dict(zip(names, low + z * span, strict=True)))

    def misfit(z: np.ndarray) -> np.ndarray:
        error = (np.log(evaluate_seconds(task.prepared, constants_at(z))) - task.log_seconds) / SCALE
        return np.concatenate([task.weight * robust(error), (z - prior) * PRIOR])

    z = np.clip(z, 0.0, 1.0)
    residual, damping = misfit(z), 1e-2
    for _ in range(steps):
        jacobian = _jacobian(misfit, z, residual)
        gradient = jacobian.T @ residual
        free = ~((z <= 0) & (gradient > 0)) & ~((z >= 1) & (gradient < 0))
        for _ in range(6):
            square = jacobian[:, free].T @ jacobian[:, free]
            step = np.zeros_like(z)
            step[free] = -np.linalg.solve(square + damping * np.eye(int(free.sum())), gradient[free])
            moved = np.clip(z + np.clip(step, -0.25, 0.25), 0.0, 1.0)
            new = misfit(moved)
            if new @ new < residual @ residual:
                break
            damping *= 4
        else:
            break
        gain = residual @ residual - new @ new
        z, residual, damping = moved, new, damping / 3
        if gain < 2e-5 * (residual @ residual):
            break
    return constants_at(z)


def robust(error: np.ndarray) -> np.ndarray:
    """Errors whose squares are the soft L1 cost, which grows linearly for outliers."""
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def _jacobian(f: Callable[[np.ndarray], np.ndarray], z: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The derivatives of f at z, where it has this value; by differences wider than the steps of ceil."""
    jacobian = np.empty((len(value), len(z)))
    for index in range(len(z)):
        width = 0.02 if z[index] < 0.9 else -0.02
        moved = z.copy()
        moved[index] += width
        jacobian[:, index] = (f(moved) - value) / width
    return jacobian


def evaluate_seconds(prepared: Prepared, c: Constants) -> np.ndarray:
    """Predicted seconds of every row."""
    return evaluate_time(prepared, c).seconds


def groups_of(runs: Runs, kind: str) -> np.ndarray:
    """The group of every row, for leaving whole groups out: one of `LEFT_OUT`."""
    who = {source: name for name, sources in read_yaml(OPERATORS).items() for source in sources}
    of: dict[str, Callable[[str, Request], str]] = {
        "lineage": lambda _, request: request.framework.lineage,
        "source": lambda source, _: source,
        "cluster": lambda source, request: f"{who.get(source, source)}: {request.chip.name}",
        "family": lambda _, request: _family(request.model),
        "generation": lambda _, request: request.chip.family.kernels.name,
    }
    return np.array([of[kind](*pair) for pair in zip(runs.source.tolist(), runs.requests, strict=True)])


def _family(model: ModelSpec) -> str:
    """The architecture and size class of a model, such as `mixture large`."""
    kind = "mla" if model.mla else "mixture" if model.moe else "gated" if model.gated else "plain"
    return f"{kind} {'large' if model.hidden_size >= 4096 else 'small'}"


def of_unknown_trainers(runs: Runs) -> Runs:
    """The same runs with unknown trainers in place of theirs, of the same dates and batches."""
    rows = []
    for row, request in zip(runs.rows, runs.requests, strict=True):
        year, month = divmod(round(12 * request.framework.year), 12)
        offload = " offload" if "offload" in text(row, "framework").lower() else ""
        named = {"framework": f"{OTHER} {year}{month + 1:02d}{offload}", "software_version": ""}
        rows.append({**row, "gbs": text(row, "gbs") or f"{request.global_batch:g}", **named})
    return runs_of(rows)


def left_out(runs: Runs, kind: str = "source", most: int = 60, steps: int = 8) -> np.ndarray:
    """Predicted seconds of every row by constants that were fitted from the priors without its group.

    Trainers of a left-out lineage also count as unknown: only their dates are used.
    """
    groups, priors = groups_of(runs, kind), start()
    tested = of_unknown_trainers(runs) if kind == "lineage" else runs
    prepared, seconds = prepare(tested.requests, priors), np.full(len(runs), np.nan)
    for group in dict.fromkeys(groups[np.isfinite(runs.seconds) & ~runs.apart]):
        held_out, fitted = groups == group, priors
        others = runs.take(~held_out)
        if others.plain.any():  # rows to fit on
            fitted = solve(problem(others, base=priors, most=most), priors, steps)
        seconds[held_out] = evaluate_seconds(prepared, fitted)[held_out]
    return seconds


def start() -> Constants:
    """The constants at their priors."""
    return constants().with_values({fact.name: fact.prior for fact in facts()})


def mean_error(runs: Runs, seconds: np.ndarray) -> float:
    """Mean over sources (with enough rows) of the median absolute error, in percent."""
    return float(np.mean(source_errors(runs, seconds)))


def source_errors(runs: Runs, seconds: np.ndarray, least: int = 5) -> np.ndarray:
    """The median absolute error of every source with enough rows, in percent, in ascending order."""
    use, layout = runs.plain & np.isfinite(seconds), runs.layout
    error = np.abs(seconds / runs.seconds - 1)
    masks = (use & (runs.source == source) for source in dict.fromkeys(runs.source))
    medians = [np.median(once_a_layout(error[mask], layout[mask])) for mask in masks if mask.sum() >= least]
    return 100 * np.sort(medians)
