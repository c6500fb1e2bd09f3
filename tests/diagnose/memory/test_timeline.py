"""Rows of PyTorch's memory profiler: a step whose categories are written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.spec.errors import UserError

MIB = 1 << 20
STEP = [
    [-1, 1, 100 * MIB, 0], [-1, 1, 200 * MIB, 1],  # parameters, and the optimizer's states
    [1000, 2, 50 * MIB, 7], [1001, 3, -50 * MIB, 7], [1001, 3, 50 * MIB, 4],  # none, then an activation
    [2000, 2, 300 * MIB, 4], [3000, 2, 100 * MIB, 5], [3500, 2, 20 * MIB, 3],
    [4000, 4, -350 * MIB, 4], [5000, 4, -100 * MIB, 5],
]  # fmt: skip


def write(folder: Path, rows: Any, name: str = "memory.raw.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(rows))
    return path


def test_the_peak_by_pytorchs_own_categories(tmp_path: Path) -> None:
    result = diagnose([write(tmp_path, STEP)])
    memory = result["memory"]
    assert result["kind"] == "memory"
    assert memory["peak_bytes"] == 770 * MIB
    assert memory["by_category"] == {
        "parameters": 100 * MIB, "gradients": 100 * MIB, "optimizer": 200 * MIB, "activations": 350 * MIB,
        "communication": 0, "loss": 0, "temporary": 20 * MIB, "other": 0,
    }  # fmt: skip
    assert memory["allocated_bytes"] == 320 * MIB
    assert max(memory["curve"]["allocated_bytes"]) == 770 * MIB
    assert memory["curve"]["time_s"][-1] == pytest.approx(4e-6)
    half = next(row for row in memory["savings"] if row["change"] == "micro-batch")
    assert half["saves_bytes"] == 175 * MIB


def test_ranks_are_devices_and_the_largest_is_the_answer(tmp_path: Path) -> None:
    write(tmp_path, STEP[:4], "rank0.json")
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(json.dumps(STEP).encode()))
    result = diagnose([tmp_path])
    assert [device["file"] for device in result["devices"]] == ["rank0.json", "rank1.json.gz"]
    assert result["memory"]["file"] == "rank1.json.gz"


@pytest.mark.parametrize(
    "rows", [[*STEP, [1, 2, 3, 9]], [*STEP, [1, 2, 3]], [*STEP, ["x", 2, 3, 4]], [*STEP, [1, 2, 1 << 60, 4]]]
)
def test_rows_of_another_form_are_refused(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(UserError, match="its rows"):
        diagnose([write(tmp_path, rows)])
