"""`--against`: what became slower is named with its seconds, and noise isn't taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.job import Job, write

from scalewright.diagnose.compare.compare import slower_than
from scalewright.diagnose.compare.noise import change, losses_apart
from scalewright.diagnose.diagnose import diagnose
from scalewright.spec.errors import UserError

JOB = Job(kernel=100.0, steps=6)


def compared(now: Job, then: Job, folder: Path) -> dict[str, Any]:
    for name, job in (("now", now), ("then", then)):
        (folder / name).mkdir()
        write(job, folder / name)
    result: dict[str, Any] = diagnose([folder / "now"], against=folder / "then")["against"]
    return result


def test_a_slower_kind_of_kernel_is_named_first_and_the_parts_add_up(tmp_path: Path) -> None:
    result = compared(JOB.without(kernel=120.0), JOB, tmp_path)
    kernel = result["kernels"][0]
    assert (kernel["short_name"], result["kinds"][0]["kind"]) == ("ampere_bf16_s16816gemm", "matrix product")
    assert result["parts"][0]["part"] == "compute"
    assert result["parts"][0]["change_s"] == pytest.approx(20e-6 * 12 * 6, rel=1e-6)  # layers, kernels
    assert kernel["change_s"] == pytest.approx(20e-6 * 12 * 6, rel=1e-6)
    whole = 6 * (result["now_s"] - result["before_s"])  # all steps alike: the mean is the median
    assert sum(row["change_s"] for row in result["parts"]) * 6 == pytest.approx(whole, rel=0.01)
    assert result["notes"] == []
    assert result["beyond_noise"]
    assert slower_than(result, 3.0)
    assert not slower_than(result, 50.0)


def test_another_run_of_the_same_is_no_change(tmp_path: Path) -> None:
    result = compared(JOB, JOB, tmp_path)
    assert result["change_pct"] == 0
    assert not slower_than(result, 0.5)


def test_a_slow_network_is_the_groups_transfer(tmp_path: Path) -> None:
    result = compared(JOB.without(collective=300.0), JOB, tmp_path)
    (group,) = result["groups"]
    assert group["transfer_s"] - group["before_transfer_s"] == pytest.approx(150e-6 * 12, rel=0.01)
    assert result["kinds"][0]["kind"] == "communication"


def test_other_work_is_noted(tmp_path: Path) -> None:
    notes = compared(JOB.without(kernels=9), JOB, tmp_path)["notes"]
    assert any("other work" in note for note in notes)


def test_an_earlier_answer_stands_for_its_traces(tmp_path: Path) -> None:
    write(JOB, tmp_path)
    answer = diagnose([tmp_path])
    (tmp_path / "then.json").write_text(json.dumps(answer))
    traces = sorted(tmp_path.glob("*.gz"))
    assert diagnose(traces, against=tmp_path / "then.json")["against"]["change_pct"] == 0


def test_a_plan_is_set_beside_the_steps(tmp_path: Path) -> None:
    write(JOB, tmp_path)
    steps = [step["step_time_s"] for step in diagnose([tmp_path])["steps"]]
    usual = float(np.median(steps))
    plan = {
        "step_time_s": {"p10": 0.4 * usual, "p50": 0.5 * usual, "p90": 0.6 * usual},
        "time_breakdown_s": {"compute": 0.4 * usual, "dp_exposed": 0.1 * usual},
    }
    (tmp_path / "plan.json").write_text(json.dumps({"best": [plan]}))
    result = diagnose(sorted(tmp_path.glob("*.gz")), against=tmp_path / "plan.json")["against"]
    assert result["change_pct"] == pytest.approx(100)
    assert result["beyond_noise"]
    assert [row["part"] for row in result["parts"]][:2] == ["compute", "exposed_communication"]
    assert sum(row["now_s"] for row in result["parts"]) == pytest.approx(float(np.mean(steps)))


@pytest.mark.parametrize("document", ['{"kind": "trace"}', '{"kind": "trace", "steps": 3}', '{"best": [1]}', "{"])
def test_a_file_that_is_no_answer_is_refused(document: str, tmp_path: Path) -> None:
    write(JOB, tmp_path)
    (tmp_path / "other.json").write_text(document)
    with pytest.raises(UserError):
        diagnose(sorted(tmp_path.glob("*.gz")), against=tmp_path / "other.json")


def test_noise_is_told_from_a_change() -> None:
    chance = np.random.default_rng(1)
    then, same, slower = (chance.normal(level, 0.03, 40) for level in (1.0, 1.0, 1.05))
    assert [entry.beyond_noise for entry in (change(then, same), change(then, slower)) if entry] == [False, True]
    few = change(then[:2], slower[:2])
    assert few is not None
    assert few.beyond_noise is None


def losses(seed: int, apart: float) -> dict[int, float]:
    chance = np.random.default_rng(seed)
    return {step: 3.0 + 7.0 / (1 + step) + chance.normal(0, 0.02) + apart * step / 200 for step in range(200)}


def test_a_loss_that_leaves_the_others_is_told_from_noise() -> None:
    same, apart = losses_apart(losses(1, 0.0), losses(2, 0.0)), losses_apart(losses(1, 0.0), losses(2, 0.1))
    assert same is not None
    assert apart is not None
    assert (same["beyond_noise"], apart["beyond_noise"]) == (False, True)
    assert apart["now"] - apart["before"] == pytest.approx(0.0875, abs=0.02)
    assert losses_apart({1: 2.0}, {1: 3.0}) is None
