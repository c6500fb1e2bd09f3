"""Published figures beside ours: a problem is answered by the package, or has its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROBLEMS = [
    {"id": "llama3-mtbf", "area": "C", "inputs": {}, "answer": {"value": 3.093, "unit": "h", "tolerance": 0.005}},
    {"id": "opt-ckpt", "area": "C", "inputs": {}, "answer": {"value": 1.6e12, "unit": "bytes", "tolerance": 0.08}},
    {"id": "bloom-hang", "area": "C", "inputs": {}, "answer": {"value": 18, "unit": "h", "tolerance": 0.05}},
    {"id": "new-one", "area": "C", "inputs": {}, "answer": {"value": 1, "unit": "1", "tolerance": 0.05}},
    {"id": "elsewhere", "area": "A", "inputs": {}, "answer": {"value": 1, "unit": "1", "tolerance": 0.05}},
]


def test_problems_are_scored_with_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import goodput_truth

    path = tmp_path / "problems.json"
    path.write_text(json.dumps(PROBLEMS))
    monkeypatch.setattr(goodput_truth, "published", list)
    monkeypatch.setattr("sys.argv", ["goodput_truth.py", str(path), "--out", str(tmp_path / "out")])
    goodput_truth.main()
    (file,) = (tmp_path / "out").glob("*.json")
    data = json.loads(file.read_text())
    assert data["counts"] == {"problems": 4, "answered": 2, "within": 1, "own": 2, "own_within": 1}
    found = {row["id"]: row for row in data["rows"]}
    assert "9.6" in found["opt-ckpt"]["why"]
    assert found["bloom-hang"]["why"] == "one event"
    assert found["new-one"]["why"] == "nobody has looked at it"
    assert not set(goodput_truth.ANSWERS) & set(goodput_truth.REASONS)
