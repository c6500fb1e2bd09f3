"""A law fitted to one's own runs: L = E + A / N^alpha + B / D^beta, and how far to trust it.

    minimise  sum of Huber_0.001( log(e^(a - alpha log N) + e^(b - beta log D) + e^e) - log L )
    with a = log A, b = log B, e = log E (Hoffmann et al. 2022, eq. 10), by L-BFGS from a grid, as it has many hollows

    bootstrap            the same with runs drawn again: p10 and p90 of each constant and of each prediction
    leave the largest    the fit without the run of most FLOPs, beside what that run measured: the error to expect

A and B are loosely determined and move with their exponents: E, the exponents and predictions are what a fit is for.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.spec.base import read_yaml
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import count

Array = NDArray[np.float64]
DELTA = 1e-3
FEWEST = 6  # runs: five constants, and something left to judge them by
START = {
    "e": (-1.0, 0.0, 1.0),
    "a": (0.0, 5.0, 10.0, 20.0),
    "b": (0.0, 5.0, 10.0, 20.0),
    "alpha": (0.0, 0.5, 1.0),
    "beta": (0.0, 0.5, 1.0),
}
BEST_STARTS = 12  # beginnings that are followed to their end, of all of the grid
FAR = 10.0  # times the FLOPs of the largest run, beyond which an extrapolation is a guess


@dataclass(frozen=True)
class Run:
    """A finished run: parameters, training tokens, and its last loss in nats a token."""

    name: str
    params: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        return 6 * self.params * self.tokens


def read_runs(sources: Sequence[str]) -> list[Run]:
    """Runs of CSV files (columns params, tokens, loss; name), run folders, or folders of them. Raises UserError."""
    runs = [run for source in sources for run in _read(Path(source).expanduser())]
    if len(runs) < FEWEST:
        how = "give more finished runs with a validation loss (`budget ladder` makes such runs), or a CSV"
        raise UserError(
            f"{len(runs)} runs are too few for a law of five constants: it takes {FEWEST}", "budget fit", how
        )
    for key in ("params", "tokens"):
        if len({getattr(run, key) for run in runs}) < 2:
            how = f"vary {key}, too: `budget ladder --params 1M,2M,4M --tokens 20M,40M,80M`"
            raise UserError(f"all runs have the same {key}, so that its exponent can't be found", "budget fit", how)
    return sorted(runs, key=lambda run: run.flops)


def _read(path: Path) -> list[Run]:
    if path.is_file():
        return _read_csv(path)
    if not path.is_dir():
        raise UserError("no such file or folder", str(path), f"check the path (you are in {Path.cwd()})")
    folders = (
        [path] if (path / "metrics.jsonl").is_file() else sorted(log.parent for log in path.rglob("metrics.jsonl"))
    )
    if not folders:
        raise UserError("no runs are here", str(path), "give a run's folder, a folder of runs, or a CSV")
    return [run for folder in folders if (run := _read_folder(folder)) is not None]


def _read_csv(path: Path) -> list[Run]:
    """Rows with params, tokens, loss; raises UserError with the row that has none."""
    runs = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        missing = {"params", "tokens", "loss"} - set(reader.fieldnames or ())
        if missing:
            raise UserError(
                f"no column {' or '.join(sorted(missing))}", str(path), "give the columns params,tokens,loss"
            )
        for number, row in enumerate(reader, 1):
            try:
                values = [float(row[key]) for key in ("params", "tokens", "loss")]
            except (TypeError, ValueError):
                values = [math.nan]
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise UserError(
                    f"row {number} has no three numbers above 0", str(path), "write params,tokens,loss: 1e6,2e7,4.2"
                )
            runs.append(Run(row.get("name") or f"row {number}", *values))
    return runs


def _read_folder(folder: Path) -> Run | None:
    """A run's exact parameters, tokens and last validation loss; None of one that hasn't ended or never validated."""
    run = RunSpec.parse(read_yaml(folder / "run.yaml"), str(folder / "run.yaml"))
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    valid = [row for row in rows if row.get("kind") == "valid"]
    trained = [row for row in rows if row.get("kind") == "train"]
    steps = run.train.steps
    if not valid or not trained or (steps is not None and valid[-1].get("step", 0) < steps):
        return None
    spec = load_model_spec(run.model)  # type: ignore[arg-type]
    return Run(folder.name, count(spec).active, float(trained[-1]["tokens"]), float(valid[-1]["loss"]))


def predict(constants: Array, params: Any, tokens: Any) -> Array:
    """The loss by (e, a, b, alpha, beta)."""
    e, a, b, alpha, beta = constants
    terms = np.broadcast_arrays(a - alpha * np.log(params), b - beta * np.log(tokens), e)
    return np.asarray(np.exp(np.logaddexp.reduce(terms)))


def fit(runs: Sequence[Run], starts: Sequence[Array] | None = None) -> Array:
    """The constants (e, a, b, alpha, beta) of the least Huber loss in logarithms."""
    from scipy.optimize import minimize

    params, tokens, losses = (np.log([getattr(run, key) for run in runs]) for key in ("params", "tokens", "loss"))

    def cost(x: Array) -> tuple[float, Array]:
        terms = np.stack([x[1] - x[3] * params, x[2] - x[4] * tokens, np.full_like(params, x[0])])
        whole = np.logaddexp.reduce(terms)
        off, share = whole - losses, np.exp(terms - whole)
        near = np.abs(off) <= DELTA
        slope = np.where(near, off, DELTA * np.sign(off))
        gradient = [
            share[2] @ slope,
            share[0] @ slope,
            share[1] @ slope,
            -(share[0] * params) @ slope,
            -(share[1] * tokens) @ slope,
        ]
        return 1e4 * float(np.where(near, off**2 / 2, DELTA * (np.abs(off) - DELTA / 2)).sum()), 1e4 * np.array(
            gradient
        )

    bounds = [(-8.0, 3.0), (-20.0, 40.0), (-20.0, 40.0), (0.0, 2.5), (0.0, 2.5)]
    if starts is None:
        grid = [np.array(point) for point in product(*START.values())]
        starts = sorted(grid, key=lambda point: cost(point)[0])[:BEST_STARTS]
    ends = [
        minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 3000}) for start in starts
    ]
    return np.asarray(min(ends, key=lambda end: float(end.fun)).x)


def names(constants: Array) -> dict[str, float]:
    """E, A, B, alpha, beta."""
    e, a, b, alpha, beta = map(float, constants)
    return {"E": math.exp(e), "A": math.exp(a), "B": math.exp(b), "alpha": alpha, "beta": beta}


def optimum(constants: Array, flops: float) -> tuple[float, float]:
    """The best (parameters, tokens) for 6 N D = flops."""
    law = names(constants)
    a, b = law["alpha"], law["beta"]
    params = (a * law["A"] / (b * law["B"])) ** (1 / (a + b)) * (flops / 6) ** (b / (a + b))
    return params, flops / (6 * params)


def fit_runs(
    runs: Sequence[Run],
    flops: float | None = None,
    params: float | None = None,
    tokens: float | None = None,
    draws: int = 100,
) -> dict[str, Any]:
    """The keys of `budget fit --json`. Raises UserError."""
    _check(flops, params, tokens)
    constants = fit(runs)
    again = _drawn(runs, constants, draws)
    notes = _notes(constants)
    fitted = predict(constants, [run.params for run in runs], [run.tokens for run in runs])
    rows = [
        {"name": run.name, "params": run.params, "tokens": run.tokens, "loss": run.loss, "fitted": float(value),
         "error_pct": 100 * (float(value) / run.loss - 1)}
        for run, value in zip(runs, fitted, strict=True)
    ]  # fmt: skip
    off = np.abs([row["error_pct"] for row in rows])  # type: ignore[arg-type]
    law, drawn = names(constants), [names(one) for one in again]
    left = leave_largest_out(runs) if len(runs) > FEWEST else None
    shown = None
    if flops is not None and min(law["alpha"], law["beta"]) > 0:
        params, tokens = optimum(constants, flops)
    if params is not None and tokens is not None:
        shown = _extrapolated(constants, again, params, tokens, max(run.flops for run in runs), left)
    return {
        "law": law, "intervals": {key: [*map(float, np.percentile([x[key] for x in drawn], (10, 90)))] for key in law},
        "leave_largest_out": left, "residual_pct": float(np.median(off)), "worst_pct": float(off.max()),
        "range": {key: [min(getattr(run, key) for run in runs), max(getattr(run, key) for run in runs)]
                  for key in ("params", "tokens", "flops")},
        "extrapolated": shown, "notes": notes, "bootstrap": draws, "runs": rows,
    }  # fmt: skip


def _check(flops: float | None, params: float | None, tokens: float | None) -> None:
    for key, value in (("flops", flops), ("params", params), ("tokens", tokens)):
        if value is not None and not (math.isfinite(value) and 0 < value < 1e32):
            raise UserError(f"{key} is {value:g}", f"--{key}", "give a number above 0")
    if (params is None) != (tokens is None) or (flops is not None and params is not None):
        raise UserError(
            "an extrapolation needs --flops alone, or --params with --tokens", "budget fit", "give one of the two"
        )


def _drawn(runs: Sequence[Run], constants: Array, draws: int) -> list[Array]:
    """Fits to runs drawn again with replacement, from where the fit ended."""
    rng = np.random.default_rng(0)
    fits: list[Array] = []
    while len(fits) < draws:
        drawn = [runs[i] for i in rng.integers(0, len(runs), len(runs))]
        if len({run.params for run in drawn}) > 1 and len({run.tokens for run in drawn}) > 1:
            fits.append(fit(drawn, [constants]))
    return fits


def leave_largest_out(runs: Sequence[Run]) -> dict[str, Any]:
    """The run of most FLOPs, predicted by a fit to all others."""
    *others, largest = sorted(runs, key=lambda run: run.flops)
    predicted = float(predict(fit(others), largest.params, largest.tokens))
    return {
        "name": largest.name, "params": largest.params, "tokens": largest.tokens, "predicted": predicted,
        "measured": largest.loss, "error_pct": 100 * (predicted / largest.loss - 1), "others": len(others),
        "times_the_flops": largest.flops / max(run.flops for run in others),
    }  # fmt: skip


def _extrapolated(
    constants: Array, again: Sequence[Array], params: float, tokens: float, largest: float, left: dict[str, Any] | None
) -> dict[str, Any]:
    """A prediction with its band: the drawn fits', and at least the error that the largest run showed."""
    value = float(predict(constants, params, tokens))
    low, high = np.percentile([float(predict(one, params, tokens)) for one in again], (10, 90))
    error = abs(left["error_pct"]) / 100 if left else 0.0
    beyond = 6 * params * tokens / largest
    loss = {"p10": min(float(low), value * (1 - error)), "p50": value, "p90": max(float(high), value * (1 + error))}
    return {"params": params, "tokens": tokens, "loss": loss, "beyond": beyond, "far": beyond > FAR}


def _notes(constants: Array) -> list[str]:
    """What makes the fit doubtful."""
    law, notes = names(constants), []
    for key in ("alpha", "beta"):
        if law[key] < 0.01 or law[key] > 2.4:
            more = "params" if key == "alpha" else "tokens"
            notes.append(f"{key} is at the end of what is tried: the runs don't determine it; vary {more} more")
    if law["E"] < 0.05:
        notes.append("E is next to 0: these losses are too far from the floor to determine it")
    return notes
