"""Recorded steps of a pipeline beside traces of CPU processes: the bubble, and the stage with most work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.cpu_job import CpuJob, write
from tests.report.pipeline_traces import make_trace, write_trace

from scalewright.diagnose.diagnose import diagnose
from scalewright.spec.errors import UserError
from scalewright.spec.schedule import StageCost, bubble_fraction, schedule, simulate

JOB = CpuJob(steps=1, layers=1, operator=12_000.0, transfer=40.0)
STEP = 10 * (12_000.0 + 20.0) + 20.0 + 40.0  # microseconds


def diagnosed(folder: Path, **trace: Any) -> dict[str, Any]:
    write(JOB, folder / "traces")
    write_trace(folder, make_trace("1f1b", 2, 1, 4, **trace))
    return diagnose([folder / "traces"])


def test_the_bubble_beside_the_schedules(tmp_path: Path) -> None:
    result = diagnosed(tmp_path)
    told = result["pipeline"]
    assert told["bubble_pct"] == pytest.approx(100 * bubble_fraction("1f1b", 2, 1, 4))
    assert told["schedule_bubble_pct"] == pytest.approx(told["bubble_pct"])
    assert [row["forward_s"] for row in told["stages"]] == pytest.approx([0.01, 0.01])
    assert [row["backward_s"] for row in told["stages"]] == pytest.approx([0.02, 0.02])
    assert "stages" not in [verdict["cause"] for verdict in result["verdicts"]]
    assert not any("pipeline-step" in line for line in result["warnings"])


def test_a_stage_with_more_work_comes_first_with_the_gain_of_equal_ones(tmp_path: Path) -> None:
    first = diagnosed(tmp_path, slower={1: 1.6})["verdicts"][0]
    assert first["cause"] == "stages"
    assert "stage 1" in first["evidence"][0]
    plan = schedule("1f1b", 2, 1, 4)
    uneven = simulate(plan, [StageCost(f, f, f) for f in (0.010, 0.016)]).makespan
    equal = simulate(plan, StageCost(0.013, 0.013, 0.013)).makespan
    assert first["gain_pct"]["p50"] == pytest.approx(100 * (uneven - equal) / (STEP * 1e-6), rel=1e-3)


def test_a_broken_one_is_left_out(tmp_path: Path) -> None:
    write(JOB, tmp_path)
    (tmp_path / "pipeline-step-00000005.json").write_text('{"schedule": "1f1b"}')
    result = diagnose([tmp_path])
    assert result["pipeline"] is None
    assert "pipeline-step-00000005.json can't be read: left out" in result["warnings"]


def test_without_traces_it_is_refused(tmp_path: Path) -> None:
    write_trace(tmp_path, make_trace("1f1b", 2, 1, 4))
    with pytest.raises(UserError, match="beside its traces"):
        diagnose([tmp_path / "traces"])
