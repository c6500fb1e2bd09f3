"""Storms of short kernels and compilation, planted: named, with the gain that the job without them shows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import Job, simulate, write

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.graphs import graphed, storms
from scalewright.diagnose.ranks import read_ranks

SHORT = Job(ranks=2, kernel=6.0, kernels=30, collective=20.0, host=40.0)


def causes(folder: Path) -> dict[str, Any]:
    return {verdict["cause"]: verdict for verdict in diagnose([folder])["verdicts"]}


def test_a_storm_of_short_kernels_is_named_with_its_gain(tmp_path: Path) -> None:
    length = write(SHORT, tmp_path)
    verdict = causes(tmp_path)["short kernels"]
    _, graph = simulate(SHORT.without(host=0.5))
    assert verdict["gain_pct"]["p90"] == pytest.approx(100 * (1 - graph / length), abs=4)
    assert verdict["evidence"] == [
        "2,230 of 2,232 kernels come in 2 runs in which the device waits for each: 6.0 µs a kernel, 40.0 "
        "between launches"
    ]
    assert "CUDA graph" in verdict["fix"]


@pytest.mark.parametrize(
    "job",
    [
        Job(),  # kernels longer than launches
        Job(kernel=6.0, kernels=30, host=4.0, collective=20.0),  # short, and launched in time
        Job(kernels=3, kernel=6.0, host=40.0, sync=True),  # runs of four: no graph pays
        Job(data=20_000.0),
    ],
)
def test_no_graph_is_proposed_where_none_would_help(tmp_path: Path, job: Job) -> None:
    write(job, tmp_path)
    assert "short kernels" not in causes(tmp_path)


def test_a_graph_keeps_every_kernel_and_its_length(tmp_path: Path) -> None:
    write(SHORT, tmp_path)
    recorded = read_ranks(sorted(tmp_path.iterdir())).recorded[0]
    changed = graphed(recorded)
    assert changed.duration == recorded.duration
    assert len(changed.calls) == len(recorded.calls)
    assert storms(recorded).runs == 1


@pytest.mark.parametrize("name", ["compile_fx_inner (dynamo_timed)", "_compile.compile_inner (dynamo_timed)"])
def test_compilation_in_every_step_is_named(tmp_path: Path, name: str) -> None:
    job = Job(ranks=1, data=20_000.0)
    write(job, tmp_path)
    [path] = tmp_path.iterdir()
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        if event["name"].startswith("enumerate"):
            event["name"] = name
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    verdict = causes(tmp_path)["compilation"]
    truth = 100 * (1 - simulate(job.without(data=0.0))[1] / simulate(job)[1])
    assert verdict["gain_pct"]["p90"] == pytest.approx(truth, abs=3)


def test_a_capture_is_found_by_its_calls(tmp_path: Path) -> None:
    job = Job(ranks=1, data=20_000.0)
    write(job, tmp_path)
    [path] = tmp_path.iterdir()
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        if event["name"].startswith("enumerate"):
            event.update(name="cudaGraphInstantiate", cat="cuda_runtime")
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert "compilation" in causes(tmp_path)
