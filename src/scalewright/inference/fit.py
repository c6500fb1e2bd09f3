"""Fits the constants to measured serving runs: `python -m scalewright.inference.fit [--write]`.

    minimise    sum over sources of the mean of rho( (log predicted - log measured) / 0.1 )      tokens/s
              + sum over sources of the mean of rho( (log predicted - log measured) / 0.2 )      TPOT
              + sum over constants of ((log c - log prior) / log(high / low))^2

Every source has the same weight, whatever its number of rows (with fewer than five: less); rho is the soft L1 cost;
each constant stays in its range and is drawn to its prior. Errors are of sources left out: the constants are fitted
without a source, and price it; bands are as wide as four fifths of those need (`spreads`). By Levenberg-Marquardt on
the logarithms. Then the constants of the first token (`first.`), in each of which TTFT is linear: the best of a grid by
the sources' medians.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from scalewright.inference.constants import CONSTANTS, Constants, constants
from scalewright.inference.score import LATENCIES, Runs, by_source, outcomes, predicted, read_table, runs_of
from scalewright.inference.spread import TENTH, sigmas
from scalewright.plan.fitting.fit import robust
from scalewright.spec.base import read_yaml

SCALE = {"rate": 0.1, "tpot_s": 0.2}  # an error of 10% is one unit of misfit; medians of latencies are less sure
PRIOR = 6.0  # units of misfit for a constant that is its whole range away from its prior
WIDTH = 0.01  # of a range, for derivatives
FIRST = {  # of the first token: the grid, in seconds and shares
    "first.http": tuple(step / 200 for step in range(11)), "first.apart": tuple(step / 50 for step in range(11)),
    "first.even": tuple(step / 10 for step in range(11)),
}  # fmt: skip
QUANTITIES = ("rate", *LATENCIES)
INSIDE = 0.8  # of what was measured: the share that a band from p10 to p90 holds
FEW = 5


@dataclass(frozen=True)
class Facts:
    """The constants that a fit may move, as logarithms in their ranges."""

    names: list[str]
    low: np.ndarray
    high: np.ndarray
    prior: np.ndarray  # 0 to 1 of the range

    def values(self, z: np.ndarray) -> Constants:
        """The constants at these places of their ranges."""
        logs = self.low + z * (self.high - self.low)
        return dict(zip(self.names, np.exp(logs).tolist(), strict=True))


def facts() -> tuple[Facts, Constants]:
    """The free constants, and the fixed ones."""
    table = read_yaml(CONSTANTS)
    apart = (*FIRST, *(f"spread.{name}" for name in QUANTITIES))
    free = {name: entry for name, entry in table.items() if entry["low"] < entry["high"] and name not in apart}
    low, high, prior = (np.log([float(e[key]) for e in free.values()]) for key in ("low", "high", "prior"))
    fixed = {name: float(entry["value"]) for name, entry in table.items() if name not in free}
    return Facts(list(free), low, high, (prior - low) / (high - low)), fixed


def fit(runs: Runs, without: Collection[str] = (), steps: int = 6, start: np.ndarray | None = None) -> Constants:
    """The constants that fit best, without these sources."""
    free, fixed = facts()
    runs = runs.take(np.flatnonzero(~np.isin(runs.source, list(without))))
    goals = {"rate": runs.measured, "tpot_s": runs.latency("tpot_s")}
    use = {name: np.flatnonzero(np.isfinite(goal)) for name, goal in goals.items()}
    weight = {name: _weight(runs.source[rows]) for name, rows in use.items()}
    keys = [
        repr((row.load, row.question.shape, setup)) for row, setup in zip(runs.asked, runs.columns.setups, strict=True)
    ]
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    different = runs.take(first)  # tables repeat themselves: a system of each maker's

    def misfit(z: np.ndarray) -> np.ndarray:
        given = outcomes(different, {**fixed, **free.values(z)})
        errors = [
            weight[name] * robust(np.log(given[name][back[rows]] / goals[name][rows]) / SCALE[name])
            for name, rows in use.items()
        ]
        return np.concatenate([*errors, (z - free.prior) * PRIOR])

    c = {**fixed, **free.values(descend(misfit, free.prior if start is None else start, steps))}
    return {**c, **_first(runs, c)}


def _weight(sources: np.ndarray) -> np.ndarray:
    """The root of each row's weight: a source has 1 in all, or less where it has fewer than FEW rows."""
    _, of, rows = np.unique(sources, return_inverse=True, return_counts=True)
    return np.asarray(np.sqrt(np.minimum(1.0, rows / FEW) / rows)[of])


def _first(runs: Runs, c: Constants) -> Constants:
    """The constants of the first token; TTFT is linear in each of them."""
    zero = dict.fromkeys(FIRST, 0.0)
    measured = runs.latency("ttft_s")
    use = np.flatnonzero(np.isfinite(measured))
    runs, goal = runs.take(use), np.log(measured[use])
    base = outcomes(runs, {**c, **zero})["ttft_s"]
    slopes = [outcomes(runs, {**c, **zero, name: 1.0})["ttft_s"] - base for name in FIRST]
    sources = [np.flatnonzero(runs.source == source) for source in set(runs.source)]
    weight = [min(1.0, len(rows) / FEW) for rows in sources]

    def misfit(values: Iterable[float]) -> float:
        off = abs(np.log(base + sum(v * slope for v, slope in zip(values, slopes, strict=True))) - goal)
        return float(np.dot(weight, [np.median(off[rows]) for rows in sources]))

    return dict(zip(FIRST, min(product(*FIRST.values()), key=misfit), strict=True))


def descend(misfit, z: np.ndarray, steps: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Levenberg-Marquardt in the unit cube."""
    residual, damping = misfit(z), 1e-2
    for _ in range(steps):
        jacobian = np.empty((len(residual), len(z)))
        for k in range(len(z)):
            moved = z.copy()
            moved[k] += WIDTH if z[k] < 0.5 else -WIDTH
            jacobian[:, k] = (misfit(moved) - residual) / (moved[k] - z[k])
        gradient, before = jacobian.T @ residual, residual @ residual
        free = ~((z <= 0) & (gradient > 0)) & ~((z >= 1) & (gradient < 0))
        for _ in range(6):
            square = jacobian[:, free].T @ jacobian[:, free]
            step = np.zeros_like(z)
            step[free] = -np.linalg.solve(square + damping * np.eye(int(free.sum())), gradient[free])
            moved = np.clip(z + np.clip(step, -0.25, 0.25), 0.0, 1.0)
            new = misfit(moved)
            if new @ new < before:
                break
            damping *= 4
        else:
            return z
        z, residual, damping = moved, new, damping / 3
        if before - new @ new < 1e-4 * before:
            return z
    return z


def left_out(runs: Runs) -> dict[str, np.ndarray]:
    """What constants fitted without each row's source predict: `rate`, and seconds by LATENCIES."""
    out = {name: np.full(len(runs.asked), np.nan) for name in QUANTITIES}
    for source in dict.fromkeys(runs.source):
        mine = np.flatnonzero(runs.source == source)
        c, theirs = fit(runs, [source]), runs.take(mine)
        for name, values in outcomes(theirs, c).items():
            out[name][mine] = values
    return out


def spreads(runs: Runs, out: dict[str, np.ndarray]) -> Constants:
    """The factor of each quantity's band with which it holds INSIDE of what sources left out have measured."""
    factors: Constants = {}
    for name in QUANTITIES:
        measured = runs.measured if name == "rate" else runs.latency(name)
        rows = np.flatnonzero(np.isfinite(measured) & np.isfinite(out[name]))
        sigma = sigmas(runs.columns, constants() | {f"spread.{name}": 1.0}, name)[rows]
        off = abs(np.log(out[name][rows] / measured[rows])) / (TENTH * sigma)
        order = np.argsort(off)
        inside = np.cumsum((_weight(runs.source[rows]) ** 2)[order])
        factors[f"spread.{name}"] = float(off[order][np.searchsorted(inside, INSIDE * inside[-1])])
    return factors


def write(c: Constants) -> None:
    """Puts the values into constants.yaml, leaving the rest as it is."""
    text = CONSTANTS.read_text(encoding="utf-8")
    for name, value in c.items():
        text = re.sub(rf"^({re.escape(name)}: {{value: )[^,]+", rf"\g<1>{value:.4g}", text, flags=re.M)
    CONSTANTS.write_text(text, encoding="utf-8")


def main() -> None:
    """Fits, prints errors by source (as fitted, and left out), and with --write keeps the constants."""
    runs = runs_of(read_table())
    best, without = fit(runs), left_out(runs)
    if "--write" in sys.argv:
        write({**best, **spreads(runs, without)})
    fitted, out = by_source(runs, predicted(runs, best)), by_source(runs, without["rate"])
    for source, row in out.items():
        line = f"{fitted[source]['error_pct']:6.1f} {row['error_pct']:6.1f} {row['bias_pct']:+7.1f}"
        print(f"{row['rows']:4.0f} {line}  {source}")
    for name, table in (("as fitted", fitted), ("left out", out)):
        errors = np.array([row["error_pct"] for row in table.values()])
        print(f"{name}: mean of sources {np.mean(errors):.1f}%, median {np.median(errors):.1f}%")


if __name__ == "__main__":
    main()
