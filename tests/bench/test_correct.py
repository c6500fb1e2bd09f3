"""A profile corrected by runs whose slowness is known: it comes back, and the left-out half is scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.fake_machine import machine

from scalewright.bench.correct import Factors, calibrate, correct, fit, measured_step
from scalewright.plan.predict import predict
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec


def write_run(folder: Path, seconds: float, steps: int = 12, noise: float = 0.0) -> Path:
    """A run folder whose first three steps are slow."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    rows = [
        {"kind": "train", "step": step, "step_time_s": seconds * float(generator.lognormal(0, noise))}
        for step in range(steps)
    ]
    for row in rows[:3]:
        row["step_time_s"] = 9.0
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + '\n{"kind": "tr')
    return folder


def price(layout: dict[str, object], place: ClusterSpec) -> float:
    parsed = Layout.parse({"devices": 2, "global_batch": 8, "precision": "fp32", **layout})
    return predict(load_model_spec("tiny"), place, parsed, 64).step_time_s


LAYOUTS: dict[str, dict[str, object]] = {
    "dp": {"zero_stage": 0}, "zero3": {"zero_stage": 3}, "tp": {"tp": 2}, "pp": {"pp": 2},
    "tp-small": {"tp": 2, "micro_batch": 2}, "dp-recompute": {"zero_stage": 1, "recompute": "full"},
}  # fmt: skip


def test_a_slow_machine_is_found_out(tmp_path: Path) -> None:
    truth = correct(machine(), Factors(1.7, 2.5))
    runs = [write_run(tmp_path / name, price(layout, truth), noise=0.02) for name, layout in LAYOUTS.items()]
    answer, corrected = calibrate(runs, machine(), lambda folder, place: price(LAYOUTS[folder.name], place))
    assert answer["median_error_before"] > 0.3
    assert answer["median_error_after"] < 0.08
    assert set(answer["fitted_to"]).isdisjoint(row["run"] for row in answer["scored_on"])
    assert len(answer["fitted_to"]) == len(answer["scored_on"]) == 3
    for name, right in (("kernels", 1.7), ("messages", 2.5)):
        assert answer["factors"][name] == pytest.approx(right, rel=0.15)
        low, high = answer["interval"][name]
        assert low <= answer["factors"][name] <= high
    assert "calibrated by 6 runs" in corrected.notes[-1]
    for name, layout in LAYOUTS.items():
        after = price(layout, corrected)
        assert after == pytest.approx(price(layout, truth), rel=0.15), name


def test_messages_stay_as_they_are_where_no_run_has_any() -> None:
    def price(factors: Factors) -> Sequence[float]:
        return [factors.kernels * seconds for seconds in (1.0, 2.0, 4.0, 8.0)]

    factors, _ = fit(price, [2, 4, 8, 16])
    assert factors.messages == pytest.approx(1.0)
    assert factors.kernels == pytest.approx(2.0, rel=0.1)


def test_curves_alone_are_multiplied() -> None:
    before, after = machine(), correct(machine(), Factors(2.0, 3.0))
    assert before.measured
    assert after.measured
    assert before.measured.timings
    assert after.measured.timings
    for old, new in zip(before.measured.timings.curves, after.measured.timings.curves, strict=True):
        factor = 3.0 if old.what in ("all_reduce", "all_gather", "reduce_scatter", "send") else 2.0
        assert new.seconds == pytest.approx([factor * seconds for seconds in old.seconds])
    assert after.device == before.device


def test_the_first_steps_and_a_cut_line_are_left_out(tmp_path: Path) -> None:
    assert measured_step(write_run(tmp_path / "run", 0.25)) == 0.25


@pytest.mark.parametrize("text", ["", "{}\n[]\nnull\n", '{"kind": "train", "step_time_s": "1"}\n' * 9])
def test_folders_without_steps(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match="0 timed steps"):
        measured_step(tmp_path)


def test_too_few_runs_no_run_and_no_curves(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few"):
        calibrate([tmp_path] * 9, machine(), lambda folder, place: 1.0)
    with pytest.raises(UserError, match="no steps to read"):
        measured_step(tmp_path)
    with pytest.raises(UserError, match="no curves"):
        correct(machine().replace(measured=None), Factors())
