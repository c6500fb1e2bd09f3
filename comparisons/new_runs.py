"""Runs that the planner never saw: scored as they are, kept in a history, and only then added to the table.

    new rows ──► priced by the shipped constants ──► results/fresh.json, an entry a table ──► measured_runs.csv (--add)

    python comparisons/new_runs.py ROWS.csv --of "runs of 2025-26"          the figure alone
    python comparisons/new_runs.py ROWS.csv --of "runs of 2025-26" --add    then the rows go into the bundled table

What a user's own run will be off by is the newest entry of that history, and not the error on the bundled table, from
which the constants were learned. Rows whose `id` the bundled table has are refused: they would not be new. The columns
are those of plan/data/measured_runs.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.fitting.runs import MEASURED, Runs, read_table, runs_of
from scalewright.plan.fitting.score import memory_of_kind, score
from scalewright.plan.predict import predict_table
from scalewright.spec.errors import UserError
from scalewright.track.environment import git_state

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "comparisons" / "results" / "fresh.json"


def main() -> None:
    """Scores, keeps the entry, prints the history; with --add the rows join the table."""
    options = arguments()
    rows = read_table(options.rows)
    try:
        check_new(rows, read_table(MEASURED))
    except UserError as error:
        sys.exit(f"error: {error}")
    entry = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "of": options.of,
        "source": git_state(ROOT),
        **fresh(rows),
    }
    history = json.loads(options.history.read_text(encoding="utf-8")) if options.history.exists() else []
    options.history.write_text(json.dumps([*history, entry], indent=1) + "\n", encoding="utf-8")
    print("\n".join(table([*history, entry])))
    if options.add:
        add(rows, MEASURED)
        print(f"{len(rows)} rows went into {MEASURED.name}: now fit the constants again")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, help="a CSV file with the columns of measured_runs.csv")
    parser.add_argument("--of", required=True, help="what the rows are, in some words")
    parser.add_argument("--add", action="store_true", help="add the rows to the bundled table, once they are scored")
    parser.add_argument("--history", type=Path, default=HISTORY, help="the file that keeps all fresh figures")
    return parser.parse_args()


def check_new(rows: Sequence[Mapping[str, str]], known: Sequence[Mapping[str, str]]) -> None:
    """Raises UserError for rows that the bundled table has, or that have columns of another table."""
    if not rows or set(rows[0]) != set(known[0]):
        raise UserError("the columns aren't those of the bundled table", "new_runs", f"take those of {MEASURED.name}")
    old = {row["id"] for row in known}
    if seen := [row["id"] for row in rows if row["id"] in old]:
        raise UserError(f"{len(seen)} rows aren't new, such as {seen[0]}", "new_runs", "leave them out")


def fresh(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Errors of rows that no constant was fitted on, in percent: means over sources of the medians of a source."""
    scored, runs = score(rows), runs_of(rows)
    mixture = np.array([request.model.moe is not None for request in runs.requests])
    keys = ("rows", "median_error_pct", "bias_pct", "coverage_pct")
    return {
        "rows": len(rows),
        "refused": len(scored["refused"]),
        **{key: scored["overall"][key] for key in keys[1:]},
        "dense_pct": _mean(runs.take(~mixture)),
        "mixtures_pct": _mean(runs.take(mixture)),
        "memory_pct": scored["memory"]["median_error_pct"],
        "ran_but_no": ran_but_no(runs),
        "sources": {name: {key: figures[key] for key in keys} for name, figures in scored["sources"].items()},
    }


def _mean(runs: Runs) -> float | None:
    overall = score(runs.rows)["overall"] if len(runs) else {}
    value = overall.get("median_error_pct")
    return None if value is None else float(value)


def ran_but_no(runs: Runs) -> list[str]:
    """The ids of runs that ran, and of which the planner thinks that they don't fit."""
    predictions = predict_table(runs.requests)
    known = np.isfinite(memory_of_kind(runs, predictions) / runs.memory) & ~runs.apart
    return [str(runs.rows[i]["id"]) for i in np.flatnonzero(known & ~predictions.outcome.memory.fits)]


def table(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """The history as a table of Markdown, newest first."""
    columns = ("median_error_pct", "dense_pct", "mixtures_pct", "bias_pct", "coverage_pct", "memory_pct")
    lines = [
        '| date | runs | rows, sources | error % | dense | mixtures | bias | in p10-p90 | memory | ran, but "no" |',
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in reversed(history):
        figures = ["" if entry[key] is None else f"{entry[key]:.1f}" for key in columns]
        counts = f"{entry['rows']}, {len(entry['sources'])}"
        lines.append(
            f"| {entry['date']} | {entry['of']} | {counts} | {' | '.join(figures)} | {len(entry['ran_but_no'])} |"
        )
    return lines


def add(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Appends rows to the table, in its order of columns."""
    known = read_table(path)
    with open(path, "a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, fieldnames=list(known[0]), lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
