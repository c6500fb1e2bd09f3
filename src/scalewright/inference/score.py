"""Predictions beside measured serving runs: error, bias and band, by source.

read_table(FILE) -> Runs: the rows that can be expressed as columns, once; errors(runs, constants) for any constants
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.inference import load
from scalewright.inference.constants import DATA, Constants, constants
from scalewright.inference.layouts import loads
from scalewright.inference.rows import RowOfTable, row_of, settle
from scalewright.inference.setup import Columns, table
from scalewright.spec.errors import UserError

IMPOSSIBLE = 3.0  # times the bound: a unit or a batch that the row misprints
MEASURED = DATA / "inference_runs.csv"
PERFECT = {"lengths.longest": 1.0, "experts.width": 0.0, "first.http": 0.0, "first.apart": 0.0, "first.even": 0.0}
LATENCIES = ("ttft_s", "tpot_s")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Measured rows as columns; `refused` has (line, why)."""

    rows: list[Row]
    asked: list[RowOfTable]
    refused: list[tuple[int, str]]

    def take(self, index: np.ndarray) -> Runs:
        """These rows alone."""
        return Runs([self.rows[i] for i in index], [self.asked[i] for i in index], [])

    @cached_property
    def columns(self) -> Columns:
        return table([row.question for row in self.asked])

    @cached_property
    def units(self) -> np.ndarray:
        return np.array([row.question.shape.units for row in self.asked], dtype=float)

    @cached_property
    def loads(self) -> load.Loads:
        """Of one unit each."""
        return loads([row.load for row in self.asked], [row.question.shape for row in self.asked])

    @cached_property
    def source(self) -> np.ndarray:
        return np.array([row["source"] for row in self.rows])

    @cached_property
    def measured(self) -> np.ndarray:
        """Tokens/s; NaN where the rate measures no server."""
        rates = [np.nan if row.rate is None or row.offered else row.rate for row in self.asked]
        measured = np.array(rates, dtype=float)
        return np.where(measured > IMPOSSIBLE * self.bound, np.nan, measured)

    def latency(self, name: str) -> np.ndarray:
        """Measured seconds of one of LATENCIES; NaN where a row has none."""
        return np.array([getattr(row, name) or np.nan for row in self.asked], dtype=float)

    @cached_property
    def bound(self) -> np.ndarray:
        """Tokens/s that the data sheet's rates allow at most: what reads and multiplies at the published rates."""
        return predicted(self, {name: 1.0 if value > 0.01 else 0.0 for name, value in constants().items()}, bound=True)


def read_table(path: Path = MEASURED) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs_of(rows: Sequence[Row]) -> Runs:
    """The rows that can be expressed."""
    kept: list[Row] = []
    asked: list[RowOfTable] = []
    refused: list[tuple[int, str]] = []
    for line, row in enumerate(rows, 2):
        try:
            asked.append(row_of(row))
            kept.append(row)
        except UserError as error:
            refused.append((line, str(error)))
    return Runs(kept, settle(asked), refused)


def predicted(runs: Runs, c: Constants, bound: bool = False) -> np.ndarray:
    """Tokens/s of each row: of output, or of input where there is none; `bound`: c are those of perfect devices."""
    return outcomes(runs, {**c, **PERFECT} if bound else c)["rate"]


def outcomes(runs: Runs, c: Constants) -> dict[str, np.ndarray]:
    """What is predicted of each row: `rate`, tokens/s as `predicted`, and seconds by LATENCIES."""
    t = runs.columns
    served = load.serve(t, c, runs.loads)
    of_output = served.requests_per_s * t.output_len * runs.units
    alone = t.input_len / np.maximum(served.prefill_s, 1e-9) * runs.units
    rate = np.asarray(np.where(t.output_len > 0, of_output, alone))
    return {"rate": rate, **{name: np.asarray(getattr(served, name)) for name in LATENCIES}}


def by_source(runs: Runs, given: np.ndarray, measured: np.ndarray | None = None) -> dict[str, dict[str, float]]:
    """Rows, median error and bias in percent of each source: of rates, or of what else was measured."""
    off = given / (runs.measured if measured is None else measured) - 1
    table_: dict[str, dict[str, float]] = {}
    for source in dict.fromkeys(runs.source):
        mine = off[(runs.source == source) & np.isfinite(off)]
        if len(mine):
            table_[source] = {"rows": len(mine), "error_pct": 100 * float(np.median(abs(mine))),
                              "bias_pct": 100 * float(np.median(mine))}  # fmt: skip
    return table_
