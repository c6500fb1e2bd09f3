"""What is given, what is usual in its place, and what a run file or a cluster says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import scalewright as sw
from scalewright.goodput.facts import read_facts
from scalewright.goodput.setting import Asked, Run, make_setting
from scalewright.plan.reliability import usual
from scalewright.spec.errors import UserError

RUN = """\
model: llama-3.1-8b
cluster: dgx-h100
layout: {devices: 64, zero_stage: 3, micro_batch: 1, global_batch: 128, recompute: full}
data: {train: DATA, seq_len: 8192}
train: {tokens: 1e12, valid_every: 500, valid_batches: 4}
checkpoint: {every: 1000, async: true}
"""


def test_given_numbers_leave_nothing_usual() -> None:
    setting = make_setting(Asked(512, 5.0, 60.0, rate=1e-5, days=1.0), Run())
    assert (setting.spread, setting.planned_rate, setting.lemon_share, setting.spares) == (0, 0, 0, None)
    assert (setting.found_s, setting.restart_s) == (0.0, 60.0)
    assert setting.assumed == (f"saves at the best interval, every {setting.best_s:,.0f} s of work",)


def test_what_isnt_given_is_named() -> None:
    words = " ".join(make_setting(Asked(512), Run()).assumed)
    for part in ("2 GB a device", "0.14 GB/s", "131 s", "480 s", "30 days", "1.97e-05", "spare node", "mended"):
        assert part in words


def test_a_save_takes_the_state_by_its_storage() -> None:
    """Llama 3: 12 bytes for each of 405B at 2 TB/s."""
    run = Run(state_bytes=405.85e9 * 12)
    assert make_setting(Asked(16384, storage=2e12), run).save_s == pytest.approx(2.435, rel=1e-3)
    assert make_setting(Asked(16384), run).save_s == pytest.approx(4.87e12 / (16384 * usual().device_rate), rel=1e-3)
    stall = make_setting(Asked(16384), replace(run, asynchronous=True))
    assert stall.save_s < make_setting(Asked(16384), run).save_s / 10
    assert stall.best_s >= 2.3  # the write is the least time between two


def test_saves_are_no_closer_than_one_takes_to_be_written() -> None:
    run = Run(state_bytes=8e9 * 12)
    setting = make_setting(Asked(8, save_s=0.0), run)
    assert setting.interval_s == setting.best_s == setting.written_s > 80
    stepped = make_setting(Asked(8, save_s=0.0), replace(run, step_s=10.0))
    assert stepped.best_s == 10 * -(-setting.written_s // 10)
    assert make_setting(Asked(8, save_s=0.0, interval_s=5.0), run).interval_s == 5


def test_a_small_state_on_many_devices_still_takes_the_storage_s_latency() -> None:
    setting = make_setting(Asked(100_000), Run(state_bytes=8e9 * 12))
    assert setting.save_s == setting.written_s == 1
    assert "1 s at least" in " ".join(setting.assumed)
    assert make_setting(Asked(100_000, save_s=0.5), Run(state_bytes=8e9 * 12)).save_s == 0.5


def test_more_devices_want_more_spares_and_few_want_none() -> None:
    counts = [make_setting(Asked(devices), Run()).best_spares for devices in (8, 64, 1024, 16384, 100_000)]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert 1 <= counts[2] <= 5
    assert counts[3] < 16384 / 8 * 0.05  # 5% is what is often advised
    away = 43_000 / 3600 * 10**7 * usual().rate * 2.77  # of ten million devices: more than e^700 can count
    assert make_setting(Asked(10**7), Run()).best_spares == pytest.approx(away, rel=0.15)


def test_a_run_file_has_its_state_its_saves_and_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    facts = read_facts(path, None, None)
    run = facts.run
    assert run.state_bytes == pytest.approx(8.03e9 * 12, rel=1e-3)
    assert (run.devices, run.per_node, run.asynchronous, run.save_every) == (64, 8, True, 1000)
    assert run.steps == pytest.approx(1e12 / (128 * 8192), abs=1)
    assert run.evaluation == pytest.approx(4 / 3 / 500)
    assert facts.step is not None
    setting = make_setting(Asked(), run)
    assert setting.interval_s == pytest.approx(1000 * facts.step.median)
    assert setting.work_s == pytest.approx((run.steps or 0) * facts.step.median)
    assert setting.best_s / facts.step.median == pytest.approx(round(setting.best_s / facts.step.median))
    half = read_facts(path, None, 32)
    assert half.step is not None
    assert half.step.median != facts.step.median


def test_without_a_cluster_a_run_file_has_no_step_time(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("cluster: dgx-h100\n", ""))
    facts = read_facts(path, None, None)
    assert facts.step is None
    assert "30 days of work" in " ".join(make_setting(Asked(), facts.run).assumed)
    assert read_facts(path, "dgx-h100", None).step is not None


@pytest.mark.parametrize(
    "asked",
    [
        Asked(0), Asked(-1), Asked(10**8), Asked(8, save_s=-1.0), Asked(8, restart_s=float("nan")), Asked(),
        Asked(8, rate=-1e-5), Asked(8, rate=float("inf")), Asked(8, interval_s=0.0), Asked(8, spares=-1),
        Asked(8, storage=0.0), Asked(8, days=0.0), Asked(8, detect_s=-1.0),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused_with_the_flag(asked: Asked) -> None:
    with pytest.raises(UserError, match=r"--\w"):
        make_setting(asked, Run())


def test_one_run_has_one_goodput_whichever_command_is_asked(tmp_path: Path) -> None:
    """By its own state, saves and validation: one closed form, and the simulation's median beside it."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    simulated, predicted = sw.goodput(path), sw.predict(sw.read(path), "dgx-h100", explain=False)["total"]
    assert simulated["closed_form"] == predicted["goodput"]
    assert predicted["goodput"] == pytest.approx(simulated["goodput"]["p50"], abs=0.01)
    assert predicted["days"] == pytest.approx(simulated["days"]["p50"], rel=0.01)
    made = tmp_path / "made.yaml"
    total = sw.budget(params=8e9, tokens=1e12, cluster="dgx-h100", devices=64, out=made)["total"]
    assert sw.goodput(made)["closed_form"] == pytest.approx(total["goodput"], rel=1e-9)  # as the step time in the file
    predicted = sw.predict(sw.read(made), "dgx-h100", explain=False)["total"]
    assert predicted["goodput"] == pytest.approx(total["goodput"], rel=1e-9)
    assert predicted["cost"] == pytest.approx(total["cost"]["p50"], rel=1e-6)
