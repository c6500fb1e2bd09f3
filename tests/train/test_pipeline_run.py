"""A whole run on a pipeline: its losses, its validation, and the timeline that `profile.steps` asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import TOLERANCE, assert_same_run, rows, run, run_data
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.schedule import schedule


def _train(folder: Path, **layout: Any) -> str:
    changes: dict[str, Any] = {
        "layout": {"micro_batch": 2, **layout},
        "train": {"steps": 4, "valid_every": 4},
        "profile": {"steps": [3]},
    }
    return run(run_data(folder, **changes)).out_dir


def test_a_pipeline_trains_validates_and_writes_its_timeline(tmp_path: Path) -> None:
    one = _train(tmp_path / "one", devices=1)
    two = _train(tmp_path / "two", devices=2, pp=2, schedule="zb-h1", zero_stage=0)
    assert_same_run(two, one)
    begun = [read_jsonl(Path(folder) / "events.jsonl")[0] for folder in (one, two)]
    assert begun[0]["parameters"] == begun[1]["parameters"], "the whole model's, on any layout"
    (valid,), (wanted,) = rows(two, "valid"), rows(one, "valid")
    assert valid["loss"] == pytest.approx(wanted["loss"], rel=TOLERANCE)
    traces = Path(two) / "traces"
    assert [path.name for path in traces.glob("pipeline-*")] == ["pipeline-step-00000003.json"]
    picture = json.loads((traces / "pipeline-step-00000003.json").read_text(encoding="utf-8"))
    plan = schedule("zb-h1", 2, 1, 4)
    assert picture["step"] == 3
    assert [len(actions) for actions in picture["actions"]] == [len(actions) for actions in plan.actions]
    assert not list((Path(one) / "traces").glob("pipeline-*"))
