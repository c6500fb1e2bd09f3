"""A run's numbers for DVC: a column a number, and the last of each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from scalewright.track.dvc import write_plots


def test_rows_become_columns_and_the_last_ones_metrics(tmp_path: Path) -> None:
    rows = [
        {"kind": "train", "step": 1, "tokens": 8, "loss": 4.0, "tokens_per_s": 1.0, "sample_ids_hash": "0a"},
        {"kind": "valid", "step": 1, "loss": 5.0, "bits_per_byte": None},
        {"kind": "train", "step": 2, "tokens": 16, "loss": 3.5, "tokens_per_s": 9.0, "aux_loss": 0.5},
        {"kind": "train", "step": 3, "tokens": 24, "loss": None, "tokens_per_s": 4.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = write_plots(tmp_path)
    assert metrics == {"train": {"step": 3, "tokens": 24, "tokens_per_s": 4.0}, "valid": {"loss": 5.0}}
    with (tmp_path / "plots" / "train.csv").open() as file:
        train = list(csv.DictReader(file))
    assert [row["loss"] for row in train] == ["4.0", "3.5", ""]
    assert [row["aux_loss"] for row in train] == ["", "0.5", ""]
    assert "sample_ids_hash" not in train[0]
    assert (tmp_path / "plots" / "valid.csv").read_text().splitlines() == ["step,loss", "1,5.0"]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert "valid" not in write_plots(tmp_path)
