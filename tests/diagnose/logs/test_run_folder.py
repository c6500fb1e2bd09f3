"""A run's folder: its usual step beside the prediction that the run recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewright.cli.terminal import show
from scalewright.diagnose.diagnose import diagnose
from scalewright.report.present import show_answer

PREDICTED = {"time": 1.0, "kind": "predicted", "step": 0, "p10": 0.09, "p50": 0.1, "p90": 0.11, "note": ""}


def run(folder: Path, seconds: float = 0.1, *events: dict[str, Any]) -> dict[str, Any]:
    """A run of 20 steps that resumed after step 10; its first step takes a second each time."""
    rows = [
        {"kind": "train", "step": n, "loss": 3.0, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 100.0,
         "step_time_s": 1.0 if n in (1, 11) else seconds, "memory_gib": 0.5} for n in range(1, 21)
    ]  # fmt: skip
    rows.append({"kind": "valid", "step": 20, "loss": 2.0})
    resume = {"time": 2.0, "kind": "resume", "step": 10}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (resume, *events)))
    text = {"model": {"name": "llama-s"}, "layout": {"devices": 2, "tp": 2}, "data": {"seq_len": 128}}
    (folder / "run.yaml").write_text(yaml.safe_dump(text))
    return diagnose([folder])


def test_a_run_as_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(tmp_path, 0.1, PREDICTED)
    assert answer["kind"] == "run"
    assert (answer["log"]["framework"], answer["log"]["model"], answer["log"]["devices"]) == (
        "scalewright",
        "llama-s",
        2,
    )
    assert (len(answer["log"]["steps"]), answer["log"]["restarts"]) == (20, 1)
    assert answer["expected"]["verdict"] == "as expected"
    assert answer["verdicts"] == []
    show(show_answer(answer), everything=True)
    assert capsys.readouterr().out.startswith("100 tokens/s on 2 devices with scalewright: as expected\n")


def test_a_slow_run_names_how_much(tmp_path: Path) -> None:
    answer = run(tmp_path, 0.22, PREDICTED)
    assert answer["expected"]["verdict"] == "slow: 100% beyond p90"
    assert answer["verdicts"][0]["cause"] == "slower than expected"


def test_a_run_without_a_prediction_tells_why(tmp_path: Path) -> None:
    event = {"time": 1.0, "kind": "predicted", "p10": None, "p50": None, "p90": None, "note": "the model is the user's"}
    answer = run(tmp_path, 0.1, event)
    assert answer["expected"] is None
    assert "the model is the user's" in answer["warnings"][0]


def test_faults_of_a_run(tmp_path: Path) -> None:
    events = [{"kind": "nonfinite", "step": 7, "action": "skipped"}, *({"kind": "overflow", "step": n} for n in (2, 3))]
    causes = [verdict["cause"] for verdict in run(tmp_path, 0.1, PREDICTED, *events)["verdicts"]]
    assert causes == ["loss not finite", "skipped updates"]


def test_broken_files_of_a_run(tmp_path: Path) -> None:
    run(tmp_path, 0.1, PREDICTED)
    (tmp_path / "run.yaml").write_text("a: [")
    (tmp_path / "events.jsonl").write_text('{"kind": "predicted", "p50": "x"}\n{"ki')
    answer = diagnose([tmp_path])
    assert (len(answer["log"]["steps"]), answer["expected"]) == (20, None)
    (tmp_path / "metrics.jsonl").write_text(f'{{"kind": "train", "step": 1{"0" * 400}, "loss": Infinity}}\n')
    assert len(diagnose([tmp_path])["log"]["steps"]) == 1
    (tmp_path / "metrics.jsonl").write_text("")
    assert diagnose([tmp_path])["log"]["steps"] == []
