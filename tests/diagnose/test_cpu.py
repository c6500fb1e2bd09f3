"""Traces of CPU processes over Gloo: matched over ranks, replayed, the planted cause first with its gain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.cpu_job import CpuJob, simulate, write

from scalewright.diagnose.answer import answer
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.replay import Change

CLEAN = CpuJob(transfer=40.0)
SHORT = replace(CLEAN, operator=50.0)


def diagnosed(job: CpuJob, folder: Path) -> dict[str, Any]:
    write(job, folder)
    return answer(read_ranks(sorted(folder.iterdir())))


def test_a_clean_job_raises_no_alarm(tmp_path: Path) -> None:
    result = diagnosed(CLEAN, tmp_path)
    assert result["verdicts"] == []
    assert sum(result["breakdown_pct"].values()) == pytest.approx(100, abs=1e-9)
    (group,) = result["communication"]["per_group"]
    assert group["group"] == "group 0 dp_shard [0, 1]"
    assert group["collectives"] == CLEAN.steps * CLEAN.layers
    assert group["transfer_s"] * 1e6 == pytest.approx(40.0 * 10, rel=0.01)
    assert [seconds * 1e6 for seconds in group["exposed_s"]] == pytest.approx([40.0 * 10] * 2, rel=0.01)


def test_a_replay_without_a_change_takes_as_long_as_recorded(tmp_path: Path) -> None:
    job = CpuJob(compute_of={1: 1.4}, python_of={0: 3.0}, skew=(0, 400, 0, 0))
    length = write(job, tmp_path)
    ranks = read_ranks(sorted(tmp_path.iterdir()))
    assert ranks.window / 1e3 == pytest.approx(length, rel=0.002)
    assert ranks.gain(Change()) == pytest.approx(0, abs=0.01)
    assert np.ptp(ranks.clocks.offset) / 1e3 == pytest.approx(400, abs=1)


FAULTS = {
    "a rank computes slowly": (replace(CLEAN, compute_of={1: 1.5}), "straggler", "compute"),
    "of four ranks, too": (replace(CLEAN, ranks=4, compute_of={2: 1.5}), "straggler", "compute"),
    "a rank sleeps between operators": (replace(CLEAN, python_of={0: 6.0}), "straggler", "host"),
    "the loader": (replace(CLEAN, data=4_000.0), "data", ""),
    "a storm of operators": (replace(CLEAN, storm=400), "short kernels", ""),
    "a storm, beside what recording it costs": (replace(CLEAN, storm=400, recorder=4.0), "short kernels", ""),
    "the loader, beside what recording costs": (replace(SHORT, data=4_000.0, recorder=15.0), "data", ""),
    "tiny operators": (replace(CLEAN, operator=5.0, operators=60), "host", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_planted_cause_comes_first(name: str, tmp_path: Path) -> None:
    job, cause, why = FAULTS[name]
    result = diagnosed(job, tmp_path)
    assert result["verdicts"][0]["cause"] == cause
    if why:
        assert [straggler["why"] for straggler in result["stragglers"]] == [why]


@pytest.mark.parametrize("name", [*FAULTS][:-1])
def test_the_gain_is_what_the_job_without_it_gains(name: str, tmp_path: Path) -> None:
    job = FAULTS[name][0]
    gain = diagnosed(job, tmp_path)["verdicts"][0]["gain_pct"]["p50"]
    real = replace(job, recorder=0.0)
    true = 100 * (1 - simulate(replace(real, compute_of={}, python_of={}, data=0.0, storm=0))[1] / simulate(real)[1])
    assert gain == pytest.approx(true, rel=0.1)


def test_what_recording_cost_is_told(tmp_path: Path) -> None:
    job = replace(SHORT, recorder=15.0)
    result = diagnosed(job, tmp_path)
    told = result["recording"]
    assert told["step_time_s"] * 1e6 == pytest.approx(simulate(SHORT)[1] / SHORT.steps)
    assert told["recorded_step_time_s"] * 1e6 == pytest.approx(simulate(job)[1] / job.steps)
    assert told["operator_us"] == pytest.approx(15 * 10 / 11, rel=1e-3)  # the eleventh, c10d's, isn't slowed
    assert any("recording made a step 1.2 times as long" in line for line in result["warnings"])


def test_a_slow_link_is_told_from_waiting(tmp_path: Path) -> None:
    first = diagnosed(CpuJob(transfer=2_000.0), tmp_path)["verdicts"][0]
    assert first["cause"] == "communication"
    assert first["gain_pct"]["p90"] == pytest.approx(100 * 2000 / (2000 + 10 * 220 + 20), rel=0.05)


def test_without_the_recorder_collectives_are_not_matched(tmp_path: Path) -> None:
    for rank, document in enumerate(simulate(CLEAN)[0]):
        del document["collectives"]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    ranks = read_ranks(sorted(tmp_path.iterdir()))
    assert not ranks.matched
    assert ranks.gain(Change()) == pytest.approx(0, abs=0.01)


def test_of_several_traced_steps_the_last_are_read(tmp_path: Path) -> None:
    for step in (3, 7):
        write(CLEAN, tmp_path / "new")
        for rank, path in enumerate(sorted((tmp_path / "new").iterdir())):
            path.rename(tmp_path / f"step-{step:08d}-rank{rank:05d}.json.gz")
    ranks = read_ranks(sorted(tmp_path.glob("*.gz")))
    assert [rank.trace.path.name[:13] for rank in ranks.ranks] == ["step-00000007"] * 2
    assert ranks.warnings == ["2 traces of earlier steps of the same ranks: left out"]
