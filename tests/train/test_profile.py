"""A traced run of two ranks: names of phases, layers, steps and axes, and what diagnose makes of it."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from runs import rows, run, run_data
from scalewright.diagnose.diagnose import diagnose
from scalewright.train.profile import Tracer


def test_two_ranks_name_what_they_do(tmp_path: Path) -> None:
    layout = {"devices": 2, "tp": 2, "micro_batch": 4}
    out = Path(run(run_data(tmp_path, layout=layout, train={"steps": 4}, profile={"steps": [2, 3]})).out_dir)
    traces = sorted((out / "traces").iterdir())
    assert [path.name for path in traces] == [f"step-00000002-rank0000{rank}.json.gz" for rank in (0, 1)]
    document = json.loads(gzip.decompress(traces[1].read_bytes()))
    names = {str(event.get("name")) for event in document["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3", "data phase", "optimizer phase", "comm_tp", "layers.0",
            "forward stage 0 micro-batch 0", "backward stage 0 micro-batch 0"} < names  # fmt: skip
    assert "tp" in document["axes"].values()
    answer = diagnose(traces)
    groups = {group["group"] for group in answer["communication"]["per_group"]}
    assert any(" tp [0, 1]" in group for group in groups)
    assert [step["step"] for step in answer["steps"]] == [2, 3]
    assert len(rows(out)) == 4


def test_a_trace_at_the_end_of_a_run_that_stops_early(tmp_path: Path) -> None:
    run(run_data(tmp_path, train={"steps": 4}, profile={"steps": [2, 3, 9]}), steps=2)
    assert [path.name for path in (tmp_path / "out" / "traces").iterdir()] == ["step-00000002-rank00000.json.gz"]


def test_writing_a_trace_is_in_no_step_s_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Tracer._write
    monkeypatch.setattr(Tracer, "_write", lambda tracer: [tracer._profiler and time.sleep(3), write(tracer)])
    run(run_data(tmp_path, train={"steps": 5}, profile={"steps": [2]}))
    assert max(row["step_time_s"] for row in rows(tmp_path / "out")) < 3
