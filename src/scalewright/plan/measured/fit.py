"""The fitted constants, found again from measured runs: `python -m scalewright.plan.measured.fit [--write]`.

    minimise    sum over sources of the mean of rho( (log predicted - log measured) / 0.1 )
              + sum over constants of ((c - prior) / range)^2

Every source weighs the same, whatever its rows; rho is robust, so that single odd rows don't decide; each
constant is held to its physical range and pulled to what is known of it. What is reported is the error on
trainers, sources, model families and device generations that were left out of the fit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalewright.plan.constants import FILE, Constants, Fact, constants, facts
from scalewright.plan.cost.evaluate import Prepared, evaluate, prepare
from scalewright.plan.frameworks import OTHER
from scalewright.plan.measured.runs import MEASURED, Runs, once_a_layout, read_table, runs_of
from scalewright.plan.rows.cells import text
from scalewright.spec.model import ModelSpec

LEFT_OUT = ("trainer", "source", "family", "generation")
UNSTEADY = re.compile(r"whole-run average|single iteration")
SCALE = 0.1  # an error of 10% counts as one unit of misfit
PRIOR = 1.0  # a constant that lies its whole range away from what was known counts as so many units


@dataclass(frozen=True)
class Problem:
    """Rows with their weights, ready to be priced again and again."""

    prepared: Prepared
    log_seconds: np.ndarray
    weight: np.ndarray
    free: tuple[Fact, ...]
    base: Constants


def problem(
    runs: Runs, free: Sequence[Fact] | None = None, base: Constants | None = None, most: int = 150
) -> Problem:
    """The rows of a fit: at most `most` of a source, evenly spaced through its rows."""
    use = runs.plain & steady(runs)
    use = use if use.any() else runs.plain
    index = []
    for source in dict.fromkeys(runs.source[use]):
        at = np.flatnonzero(use & (runs.source == source))
        index.append(at[np.unique(np.linspace(0, len(at) - 1, min(most, len(at))).astype(int))])
    some = runs.take(np.concatenate(index))
    counts = {source: int((some.source == source).sum()) for source in set(some.source)}
    layout = some.layout
    layouts = {source: len(np.unique(layout[some.source == source])) for source in counts}
    alike = np.bincount(layout)[layout]
    weight = np.array([min(1.0, counts[s] / 5) / layouts[s] for s in some.source]) / alike
    chosen = tuple(free) if free is not None else tuple(fact for fact in facts() if fact.fitted)
    return Problem(prepare(some.requests), np.log(some.seconds), np.sqrt(weight), chosen, base or constants())


def steady(runs: Runs) -> np.ndarray:
    """Rows that time a steady step, as far as their notes say: only these are fitted on, all are scored.

    An average over a whole run holds its failures and checkpoints, and a run's second iteration its start.
    """
    return np.array([not UNSTEADY.search(text(row, "notes")) for row in runs.rows], dtype=bool)


def solve(task: Problem, start: Constants | None = None, steps: int = 12) -> Constants:
    """The constants that fit best: Levenberg and Marquardt's steps, clipped to the ranges.

    A constant at its bound whose gradient points outwards is left out of a step.
    """
    low = np.array([fact.low for fact in task.free])
    span = np.array([fact.high for fact in task.free]) - low
    prior = (np.array([fact.prior for fact in task.free]) - low) / span
    names = [fact.name for fact in task.free]
    z = (np.array([(start or task.base)[name] for name in names]) - low) / span

    def constants_at(z: np.ndarray) -> Constants:
        return task.base.with_values(dict(zip(names, low + z * span, strict=True)))

    def misfit(z: np.ndarray) -> np.ndarray:
        error = (np.log(evaluate_seconds(task.prepared, constants_at(z))) - task.log_seconds) / SCALE
        return np.concatenate([task.weight * robust(error), (z - prior) * PRIOR])

    z = np.clip(z, 0.0, 1.0)
    residual, damping = misfit(z), 1e-2
    for _ in range(steps):
        slopes = _slopes(misfit, z, residual)
        gradient = slopes.T @ residual
        free = ~((z <= 0) & (gradient > 0)) & ~((z >= 1) & (gradient < 0))
        for _ in range(6):
            square = slopes[:, free].T @ slopes[:, free]
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
    """Errors whose squares are the soft L1 cost: far rows pull no harder than near ones."""
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def _slopes(of: Callable[[np.ndarray], np.ndarray], z: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The derivatives by differences; steps wide enough to see past the corners of max and ceil."""
    found = np.empty((len(at), len(z)))
    for index in range(len(z)):
        width = 0.02 if z[index] < 0.9 else -0.02
        moved = z.copy()
        moved[index] += width
        found[:, index] = (of(moved) - at) / width
    return found


def evaluate_seconds(prepared: Prepared, c: Constants) -> np.ndarray:
    """Predicted seconds of every row."""
    return evaluate(prepared, c, with_memory=False).step.seconds


def groups_of(runs: Runs, kind: str) -> np.ndarray:
    """A label for every row, by which rows are left out together: trainer, source, family or generation."""
    if kind == "trainer":
        return np.array([request.framework.name for request in runs.requests])
    if kind == "source":
        return runs.source
    if kind == "family":
        return np.array([_family(request.model) for request in runs.requests])
    return np.array([request.chip.family.kernels.name for request in runs.requests])


def _family(model: ModelSpec) -> str:
    """llama, gpt, a mixture, ...: by what the model is made of."""
    kind = "mla" if model.mla else "mixture" if model.moe else "gated" if model.gated else "plain"
    return f"{kind} {'large' if model.hidden_size >= 4096 else 'small'}"


def of_unknown_trainers(runs: Runs) -> Runs:
    """The same runs, each by a trainer that isn't in frameworks.yaml, of the date of its own."""
    rows = []
    for row, request in zip(runs.rows, runs.requests, strict=True):
        year, month = divmod(round(12 * request.framework.year), 12)
        offload = " offload" if "offload" in text(row, "framework").lower() else ""
        name = f"{OTHER} {year}{month + 1:02d}{offload}"
        rows.append({**row, "framework": name, "software_version": ""})
    return runs_of(rows)


def left_out(runs: Runs, kind: str = "source", most: int = 60, steps: int = 8) -> np.ndarray:
    """Predicted seconds of every row by constants fitted without its group, from what was known before.

    A trainer that is left out is unknown, too: of its entry in frameworks.yaml only the date is used, where a
    row has none.
    """
    groups = groups_of(runs, kind)
    known = constants().with_values({fact.name: fact.prior for fact in facts()})
    asked = of_unknown_trainers(runs) if kind == "trainer" else runs
    everything = prepare(asked.requests, known)
    found = np.full(len(runs), np.nan)
    for group in dict.fromkeys(groups):
        mine = groups == group
        if not (np.isfinite(runs.seconds[mine]) & ~runs.apart[mine]).any():
            continue
        others = runs.take(~mine)
        fitted = known  # where nothing is left to fit on
        if others.plain.any():
            fitted = solve(problem(others, base=known, most=most), known, steps)
        found[mine] = evaluate_seconds(everything, fitted)[mine]
    return found


def write(c: Constants, path: Path = FILE) -> None:
    """Puts fitted values into the constants' file; what was known before is kept as `prior`."""
    lines, group = [], ""
    fitted = {fact.name: fact for fact in facts() if fact.fitted}
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"^[a-z]\w*:", line):
            group = line.split(":")[0]
        found = re.match(r"^  ([\w.-]+): \{", line)
        fact = fitted.get(f"{group}.{found[1]}") if found else None
        if fact is not None:
            value, prior = f"{c[fact.name]:.4g}", f"{fact.prior:.4g}"
            line = re.sub(r" prior: [^,]+,", "", line)
            line = re.sub(r"value: [^,]+,", f"value: {_plain(value)}, prior: {_plain(prior)},", line, count=1)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _plain(number: str) -> str:
    """A number that YAML reads as one: an exponent needs a dot before it."""
    return number.replace("e", ".0e", 1) if "e" in number and "." not in number else number


def main() -> None:
    """Fits, and prints the constants and the errors left out; `--write` keeps the constants."""
    runs = runs_of(read_table(MEASURED))
    known = constants().with_values({fact.name: fact.prior for fact in facts()})
    fitted = solve(problem(runs, base=known), known)
    for fact in facts():
        if fact.fitted:
            print(f"{fact.name:22s} {fact.prior:10.4g} -> {fitted[fact.name]:10.4g}   {fact.unit}")
    everything = prepare(runs.requests, fitted)
    print("\nmean over sources of the median error:")
    print(f"  {'fitted':28s} {mean_error(runs, evaluate_seconds(everything, fitted)):5.1f}%")
    for kind in LEFT_OUT:
        print(
            f"  {'each ' + kind + ' left out':28s} {mean_error(runs, left_out(runs, kind)):5.1f}%", flush=True
        )
    if "--write" in sys.argv:
        write(fitted)


def mean_error(runs: Runs, seconds: np.ndarray) -> float:
    """Mean over sources (with enough rows) of the median absolute error, in percent."""
    return float(np.mean(source_errors(runs, seconds)))


def source_errors(runs: Runs, seconds: np.ndarray, least: int = 5) -> np.ndarray:
    """The median absolute error of every source with enough rows, in percent, in ascending order."""
    use = runs.plain & np.isfinite(seconds)
    error = np.abs(seconds / runs.seconds - 1)
    layout = runs.layout
    rows = (use & (runs.source == source) for source in dict.fromkeys(runs.source))
    return np.sort(
        [100 * np.median(once_a_layout(error[at], layout[at])) for at in rows if at.sum() >= least]
    )


if __name__ == "__main__":
    main()
