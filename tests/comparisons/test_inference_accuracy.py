"""The page about inference has the figures of the newest result, and both scripts work on some rows."""

from __future__ import annotations

import json
import subprocess
import sys

import inference_accuracy
import numpy as np

from scalewright.inference.constants import constants
from scalewright.inference.score import LATENCIES, outcomes, read_table, runs_of


def test_the_page_has_the_newest_figures() -> None:
    page = inference_accuracy.PAGE.read_text(encoding="utf-8")
    assert inference_accuracy.page_table(inference_accuracy.newest()) in page


def test_figures_of_some_rows() -> None:
    runs = runs_of(read_table()[::20])
    found = inference_accuracy.figures(runs, outcomes(runs, constants()))
    assert found["left_out"]["median_of_sources_pct"] == found["shipped"]["median_of_sources_pct"]
    assert found["scored"] == np.isfinite(runs.measured).sum()
    assert 0 <= found["left_out"]["inside_pct"] <= 100
    for name in LATENCIES:
        of = found["latencies"][name]
        assert sum(line["rows"] for line in of["sources"].values()) == np.isfinite(runs.latency(name)).sum() > 0
        assert of["left_out"]["median_of_sources_pct"] == of["shipped"]["median_of_sources_pct"]


def test_worked_problems(tmp_path) -> None:
    """The scaling book's bound of LLaMA-2 13B, and DeepSeek-V3's cache (Insights into DeepSeek-V3, table 1)."""
    problems = [
        {
            "id": "sb-inf-table-mha-b8", "topic": "inference", "tolerance_pct": 0.2,
            "inputs": {"batch": 8, "kv_seq": 6.7e9, "weights": 26e9, "chips": 8, "hbm_bw": 8.2e11},
            "answer": {"step": {"value": 0.01213, "unit": "s"}, "kv": {"value": 53.6e9, "unit": "bytes"}},
        },
        {"id": "ds-kv-v3", "topic": "inference", "inputs": {}, "answer": {"bytes": {"value": 70272, "unit": "bytes"}}},
    ]  # fmt: skip
    file, out = tmp_path / "problems.json", tmp_path / "out.json"
    file.write_text(json.dumps(problems))
    script = inference_accuracy.ROOT / "comparisons" / "inference_truth.py"
    subprocess.run([sys.executable, str(script), str(file), "--out", str(out)], check=True, capture_output=True)
    worked = json.loads(out.read_text())["worked"]
    assert (worked["figures"], worked["within"]) == (3, 3)
