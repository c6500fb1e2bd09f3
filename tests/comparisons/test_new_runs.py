"""New runs are scored before they join the table, and what was found then stays."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

from scalewright.plan.fitting.runs import MEASURED, read_table

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, "comparisons/new_runs.py"]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def test_a_table_is_scored_and_the_history_grows(tmp_path: Path) -> None:
    rows = [row for row in read_table(MEASURED) if row["source"] == "megatron-2020"][:6]
    slow = [{**row, "id": f"other-{n}", "step_time_s": "1e4", "step_time_derived_s": ""} for n, row in enumerate(rows)]
    file, history = write(tmp_path / "rows.csv", slow), tmp_path / "fresh.json"
    for count in (1, 2):
        command = [*SCRIPT, str(file), "--of", "slow runs", "--history", str(history)]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
        entries = json.loads(history.read_text(encoding="utf-8"))
        assert len(entries) == count == shown.count("| slow runs |")
    assert entries[0]["rows"] == 6
    assert entries[0]["mixtures_pct"] is None
    assert entries[0]["bias_pct"] < -90
    assert entries[0]["sources"]["megatron-2020"]["coverage_pct"] == 0


def test_rows_of_the_table_are_not_new(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.csv", read_table(MEASURED)[:2])
    done = subprocess.run(
        [*SCRIPT, str(file), "--of", "old", "--history", str(tmp_path / "h.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "2 rows aren't new" in done.stderr
    assert not (tmp_path / "h.json").exists()
