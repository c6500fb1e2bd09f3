"""How far the planner is off on a feature that no run of the fit had: by how much such a feature widens the band.

    python comparisons/unmeasured_features.py            a minute; a dated result
    python comparisons/unmeasured_features.py --quick    three features, nothing kept

Each feature of a layout, and each pair of them (plan/features.py), is left out in turn: the constants are fitted to
the runs without it, and price those with it. The table has what all its runs are off by together (the median over
layouts of log predicted / measured), and how many of its layouts lie between p10 and p90: 8 of 10 is what a band has.

The runs don't give one number for `band.feature` of constants.yaml, so that all that could stand for it are printed:
the root mean square of the offsets, that without the largest, and a deviation by their median. All are lower bounds:
formulas were written by people who knew these runs, and only constants are fitted anew. A feature has a weight of 1, or
a fifth for each layout where it has fewer than five; what most runs have can't be left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.result import table

from scalewright.plan.constants import Constants, constants
from scalewright.plan.cost.memory import SIGMA
from scalewright.plan.features import features
from scalewright.plan.fitting.fit import problem, solve, start
from scalewright.plan.fitting.runs import MEASURED, Runs, once_a_layout, read_table, runs_of
from scalewright.plan.predict import predict_table

RESULTS = Path(__file__).resolve().parent / "results"
ENOUGH, MOST = 5, 0.5  # layouts for a whole weight; the share of runs that can be left out
WIDER = constants()["band.feature"]
SIZES = (
    ("rms", "root mean square of the offsets"),
    ("rms_but_one", "without the largest"),
    ("by_median", "a normal's deviation, by their median"),
)
NORMAL = 1.4826  # a normal distribution's deviation over the median of its distances from 0


def errors(runs: Runs, c: Constants) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted / measured) of each layout, and the band's deviation as it is where the feature was measured."""
    predictions = predict_table(runs.requests, c)
    off = np.log(predictions.p50 / runs.seconds)
    return once_a_layout(off, runs.layout), once_a_layout(predictions.sigma(), runs.layout)


def left_out(runs: Runs, most: int = 1000) -> list[dict[str, Any]]:
    """Each feature with its offsets, out of the fit and in it."""
    fitted, used = fit(runs), [set(features(request)) for request in runs.requests]
    rows: list[dict[str, Any]] = []
    for name in sorted(set().union(*used)):
        has = np.array([name in names for names in used])
        if len(rows) == most or not 0 < (has & runs.plain).sum() < MOST * runs.plain.sum():
            continue
        mine = runs.take(has & runs.plain)
        counts = {"layouts": len(np.unique(mine.layout)), "sources": len(set(mine.source))}
        off, sigma = errors(mine, fit(runs.take(~has)))
        offsets = {"left_out": float(np.median(off)), "in_the_fit": float(np.median(errors(mine, fitted)[0]))}
        inside = [float(np.mean(np.abs(off) <= SIGMA * np.hypot(sigma, more))) for more in (0, WIDER)]
        rows.append({"feature": name, **counts, **offsets, "inside": inside[0], "inside_wider": inside[1]})
    return rows


def fit(runs: Runs) -> Constants:
    """The constants of these runs, from their priors."""
    return solve(problem(runs, base=start(), most=60), start(), 8)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Shares between p10 and p90, and the offsets' size in three ways, out of the fit and in it."""
    weights = np.array([min(1.0, row["layouts"] / ENOUGH) for row in rows])
    figures = {
        key: float(np.average([row[key] for row in rows], weights=weights)) for key in ("inside", "inside_wider")
    }
    for key in ("left_out", "in_the_fit"):
        distances = np.abs([row[key] for row in rows])
        order = np.argsort(distances)
        share = np.cumsum(weights[order])
        figures[f"rms_{key}"] = float(np.sqrt(np.average(distances**2, weights=weights)))
        most = order[:-1]
        figures[f"rms_but_one_{key}"] = float(np.sqrt(np.average(distances[most] ** 2, weights=weights[most])))
        figures[f"by_median_{key}"] = float(NORMAL * distances[order][np.searchsorted(share, share[-1] / 2)])
    return figures


def main() -> None:
    """Leaves every feature out; prints and keeps the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three features, nothing kept")
    quick = parser.parse_args().quick
    rows = left_out(runs_of(read_table(MEASURED)), 3 if quick else 1000)
    cells = [
        [row["feature"], row["layouts"], row["sources"], f"{row['left_out']:+.3f}", f"{row['in_the_fit']:+.3f}",
         f"{100 * row['inside']:.0f}%", f"{100 * row['inside_wider']:.0f}%"]
        for row in rows
    ]  # fmt: skip
    heads = ("feature", "layouts", "sources", "offset, left out", "in the fit", "in the band", f"{WIDER:g} wider")
    figures = summary(rows)
    sizes = [[name, f"{figures[f'{key}_left_out']:.3f}", f"{figures[f'{key}_in_the_fit']:.3f}"] for key, name in SIZES]
    shares = [f"{100 * figures[key]:.0f}%" for key in ("inside", "inside_wider")]
    text = (
        f"# Features left out of the fit\n\n{table(heads, cells)}\n\nAll, a feature's weight each: {shares[0]} of the "
    )
    text += f"layouts are between p10 and p90, and {shares[1]} with `band.feature` ({WIDER:g}) in the band.\n\n"
    text += f"{table(('log seconds', 'left out', 'in the fit'), sizes)}\n"
    print(text)
    if not quick:
        stem = RESULTS / f"{time.strftime('%Y-%m-%d', time.gmtime())}-unmeasured-features"
        stem.with_suffix(".md").write_text(text, encoding="utf-8")
        document = {"summary": figures, "features": rows}
        stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
