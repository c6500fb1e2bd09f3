"""What each change of the physics is worth: errors on rows that were left out, each change alone and together.

    python comparisons/effects.py                         ten minutes of one core; a dated result
    python comparisons/effects.py --cuts lineage          one way to leave out

A change is a set of constants; its neutral values switch it off. The constants are fitted anew for every line, with
the change's own at its value or its neutral one. A change that doesn't help on what was left out isn't kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.constants import Fact, constants, facts
from scalewright.plan.cost.evaluate import prepare
from scalewright.plan.fitting.fit import (
    evaluate_seconds,
    groups_of,
    mean_error,
    of_unknown_trainers,
    problem,
    solve,
    start,
)
from scalewright.plan.fitting.runs import MEASURED, Runs, read_table, runs_of

RESULTS = Path(__file__).resolve().parent / "results"
CUTS = ("lineage", "cluster", "generation")
# The neutral values of each change: without it all releases, networks or trainers are alike.
CHANGES: dict[str, dict[str, float]] = {
    "tokens sorted and scored in one kernel, by release": {
        "memory.loose_permute": 1, "host.loose_permute": 1, "memory.loose_router": 1, "host.loose_router": 1,
    },
    "kinds of networks": {f"{group}.{kind}": 1 for group in ("fabric", "exchange", "dispatch")
                          for kind in ("roce", "efa", "tcpx", "ethernet")},
    "attention by the keys of a query": {"kernel.edge": 0},
    "launches of an expert layer": {"host.experts": 1.3},
}  # fmt: skip


def main() -> None:
    """Fits without each change, with it alone, and with all; prints and keeps the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cuts", nargs="*", default=CUTS, help="what is left out: " + ", ".join(CUTS))
    options = parser.parse_args()
    runs, known = runs_of(read_table(MEASURED)), constants().values
    changes = {name: {key: v for key, v in off.items() if key in known} for name, off in CHANGES.items()}
    changes = {name: off for name, off in changes.items() if off}
    rows = {"none": figures(runs, list(changes.values()), options.cuts)}
    for name in changes:
        others = [off for other, off in changes.items() if other != name]
        rows[f"{name}, alone"] = figures(runs, others, options.cuts)
    rows["all"] = figures(runs, [], options.cuts)
    columns = [f"{cut}{part}" for cut in options.cuts for part in ("", ", mixtures")]
    result: dict[str, Any] = {"columns": columns, "rows": rows}
    path = RESULTS / f"{time.strftime('%Y-%m-%d', time.gmtime())}-effects.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, numbers in rows.items():
        print(f"{name:55s}", *(f"{number:6.2f}" for number in numbers))


def figures(runs: Runs, off: Sequence[Mapping[str, float]], cuts: Sequence[str]) -> list[float]:
    """Mean errors over sources by each cut, of all runs and of mixtures, with these changes at their neutral values."""
    neutral = {key: value for values in off for key, value in values.items()}
    free = [fact for fact in facts() if fact.fitted and fact.name not in neutral]
    mixture = np.array([request.model.moe is not None for request in runs.requests])
    found = []
    for cut in cuts:
        seconds = left_out(runs, cut, free, neutral)
        found += [mean_error(runs, seconds), mean_error(runs.take(mixture), seconds[mixture])]
    return found


def left_out(runs: Runs, cut: str, free: Sequence[Fact], neutral: Mapping[str, float]) -> np.ndarray:
    """Predicted seconds of every row by constants that were fitted without its group."""
    base = start().with_values(neutral)
    groups, asked = groups_of(runs, cut), of_unknown_trainers(runs) if cut == "lineage" else runs
    prepared, seconds = prepare(asked.requests, base), np.full(len(runs), np.nan)
    for group in dict.fromkeys(groups[runs.plain].tolist()):
        out = groups == group
        others = runs.take(~out)
        fitted = solve(problem(others, free, base, 60), base, 8) if others.plain.any() else base
        seconds[out] = evaluate_seconds(prepared, fitted)[out]
    return seconds


if __name__ == "__main__":
    main()
