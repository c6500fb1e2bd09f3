"""Fits the shipped constants to the bundled runs, and says how far off they are on what a fit never saw.

    python comparisons/fit_constants.py            the constants, and errors with each lineage, cluster, ... left out
    python comparisons/fit_constants.py --write    and writes them into plan/data/constants.yaml; minutes of one core

A constant about which one source has most of what the rows say is marked `one_source`, which widens its band.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np

from scalewright.plan.constants import FILE, Constants, facts
from scalewright.plan.cost.evaluate import prepare
from scalewright.plan.fitting.fit import (
    LEFT_OUT,
    Problem,
    evaluate_seconds,
    left_out,
    mean_error,
    problem,
    solve,
    start,
)
from scalewright.plan.fitting.runs import MEASURED, read_table, runs_of

ALONE = 0.9  # share of the information about a constant above which one source identifies it alone


def main() -> None:
    """Fits; prints the constants and the cross-validated errors; `--write` saves the constants."""
    runs, priors = runs_of(read_table(MEASURED)), start()
    task = problem(runs, base=priors)
    fitted = solve(task, priors)
    alone = of_one_source(task, fitted)
    for fact in task.free:
        only = f"   by {alone[fact.name]} alone" if fact.name in alone else ""
        print(f"{fact.name:22s} {fact.prior:10.4g} -> {fitted[fact.name]:10.4g}   {fact.unit}{only}")
    if "--write" in sys.argv:
        write(fitted, alone=alone)
    prepared = prepare(runs.requests, fitted)
    print("\nmean over sources of the median error:")
    print(f"  {'fitted':28s} {mean_error(runs, evaluate_seconds(prepared, fitted)):5.1f}%")
    for kind in LEFT_OUT:
        error = mean_error(runs, left_out(runs, kind))
        print(f"  {'each ' + kind + ' left out':28s} {error:5.1f}%", flush=True)


def of_one_source(task: Problem, c: Constants) -> dict[str, str]:
    """Constants of which one source has most of what the rows say (Fisher's information), with that source."""
    alone, base = {}, np.log(evaluate_seconds(task.prepared, c))
    for fact in task.free:
        moved = c.with_values({fact.name: c[fact.name] * 1.02})
        told = (task.weight * (np.log(evaluate_seconds(task.prepared, moved)) - base)) ** 2
        by_source = {source: told[task.source == source].sum() for source in set(task.source.tolist())}
        most = max(by_source, key=lambda source: by_source[source])
        if told.sum() > 0 and by_source[most] > ALONE * told.sum():
            alone[fact.name] = most
    return alone


def write(c: Constants, path: Path = FILE, alone: Collection[str] = ()) -> None:
    """Writes fitted values into the constants' file; the value before any fit stays as `prior`. Marks those `alone`."""
    lines, group = [], ""
    fitted = {fact.name: fact for fact in facts() if fact.fitted}
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"^[a-z]\w*:", line):
            group = line.split(":")[0]
        entry = re.match(r"^  ([\w.-]+): \{", line)
        fact = fitted.get(f"{group}.{entry[1]}") if entry else None
        if fact is not None:
            value, prior = f"{c[fact.name]:.4g}", f"{fact.prior:.4g}"
            line = re.sub(r" (prior: [^,]+|one_source: true),", "", line)
            line = line.replace("fitted: true,", "fitted: true, one_source: true,") if fact.name in alone else line
            line = re.sub(r"value: [^,]+,", f"value: {_plain(value)}, prior: {_plain(prior)},", line, count=1)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _plain(number: str) -> str:
    """A number in YAML's spelling: an exponent needs a dot before it."""
    return number.replace("e", ".0e", 1) if "e" in number and "." not in number else number


if __name__ == "__main__":
    main()
