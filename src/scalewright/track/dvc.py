"""A finished run's numbers in the forms that DVC reads: CSV for its plots, JSON for its metrics.

metrics.jsonl ──► plots/train.csv, plots/valid.csv      a column a number, a line a row (DVC plots no JSON lines)
              └─► on stdout {"train": {"step": …, "loss": …}, "valid": {…}}: the last of each, the median of speeds

python -m scalewright.track.dvc runs/tiny > runs/tiny.json         as the script of `launch dvc` does
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scalewright.spec.common.jsonl import read_jsonl
from scalewright.track.lines import Row

KINDS = {  # of rows: what of the last one is a metric
    "train": ("step", "tokens", "loss"),
    "valid": ("loss", "bits_per_byte"),
}
SPEEDS = ("tokens_per_s", "mfu", "memory_gib")  # medians, as a step's differs from the next one's


def write_plots(folder: Path) -> dict[str, dict[str, float]]:
    """Writes the CSV files of the kinds that a run has rows of; returns its metrics, those that are finite."""
    rows, metrics = read_jsonl(folder / "metrics.jsonl"), dict[str, dict[str, float]]()
    (folder / "plots").mkdir(exist_ok=True)
    for kind, keys in KINDS.items():
        if not (chosen := [_numbers(row) for row in rows if row.get("kind") == kind]):
            continue
        _write_csv(folder / "plots" / f"{kind}.csv", chosen)
        speeds = {key: [row[key] for row in chosen if key in row] for key in SPEEDS}
        metrics[kind] = {key: chosen[-1][key] for key in keys if key in chosen[-1]}
        metrics[kind] |= {key: median(values) for key, values in speeds.items() if values}
    return metrics


def _write_csv(path: Path, rows: Sequence[dict[str, float]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def _numbers(row: Row) -> dict[str, float]:
    """A row's finite numbers."""
    plain = {key: value for key, value in row.items() if type(value) in (int, float)}
    return {key: value for key, value in plain.items() if math.isfinite(value)}


if __name__ == "__main__":
    print(json.dumps(write_plots(Path(sys.argv[1])), indent=1))
