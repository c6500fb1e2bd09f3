"""fp16: the loss scale finds its place without a fault, is saved, and every layout is one device."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from runs import assert_same_bits, assert_same_run, bits, events, merge, rows, run, run_data, weights
from scalewright.spec.guard import GuardSpec
from scalewright.train.columns import LOSS, NORM, SKIPPED, STREAK, WIDTH
from scalewright.train.guard import decide
from scalewright.train.guard.decide import Guard

# fp16 keeps 11 bits (5e-4); sums of such roundings differ between layouts by less (measured: 6e-5).
TOLERANCE = 4e-3


def judged(guard: Guard, loss: float, norm: float) -> tuple[bool, float]:
    """A step whose scaled gradients have this norm: (skipped, streak)."""
    report = torch.zeros(WIDTH)
    report[LOSS], report[NORM] = loss, norm
    guard.judge(report, guard.note_local(report), 1.0)
    return bool(report[SKIPPED]), float(report[STREAK])


def test_the_scale_moves_as_torchs(monkeypatch):
    """Beside `torch.amp.GradScaler`, step by step: overflows early, late and in a row, growth after many."""
    assert torch.amp.GradScaler("cpu").get_growth_interval() == decide.INTERVAL
    monkeypatch.setattr(decide, "INTERVAL", 20)
    torchs = torch.amp.GradScaler("cpu", growth_interval=20)
    guard = Guard(GuardSpec(), torch.device("cpu"), fp16=True)
    assert guard.scale is not None
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(70):
        bad = step in (0, 1, 30)
        assert guard.scale.value.item() == torchs.get_scale()
        weight.grad = torch.tensor(float("inf") if bad else 1.0)
        torchs.scale(weight)
        torchs.step(optimizer)
        torchs.update()
        assert judged(guard, 2.0, float("inf") if bad else 1.0) == (bad, 0)
    assert guard.scale.value.item() == torchs.get_scale()


def test_at_the_floor_an_overflow_is_a_fault():
    guard = Guard(GuardSpec(), torch.device("cpu"), fp16=True)
    found = [judged(guard, 2.0, float("nan")) for _ in range(20)]
    assert found[:16] == [(True, 0)] * 16  # 65,536 is halved to 1
    assert found[16:19] == [(True, 1), (True, 2), (True, 3)]
    assert guard.scale is not None
    assert guard.scale.value.item() == decide.FLOOR
    fresh = Guard(GuardSpec(), torch.device("cpu"), fp16=True)
    assert judged(fresh, float("nan"), float("nan")) == (True, 1)
    assert fresh.scale is not None
    assert fresh.scale.value.item() == decide.FIRST  # a loss that isn't finite is not the scale's doing


FP16: dict[str, Any] = {
    "model": {"num_hidden_layers": 4},  # one a stage, where a V has four
    "layout": {"precision": "fp16"},
    "train": {"steps": 6},
    "checkpoint": {"at_end": True},
}


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return run(run_data(folder, **merge(FP16, {"layout": {"micro_batch": 4}}))).out_dir


@pytest.mark.parametrize(
    "layout",
    [
        {"zero_stage": 3, "micro_batch": 2},
        {"pp": 2, "schedule": "zb-h1", "micro_batch": 2},
        pytest.param({"zero_stage": 0, "micro_batch": 2}, marks=pytest.mark.slow),
        pytest.param({"zero_stage": 2, "micro_batch": 2, "offload": "optimizer"}, marks=pytest.mark.slow),
        pytest.param({"tp": 2, "micro_batch": 4}, marks=pytest.mark.slow),
        pytest.param({"pp": 2, "schedule": "zbv", "micro_batch": 1}, marks=pytest.mark.slow),
    ],
)
def test_layouts_are_one_device(control, tmp_path, layout):
    """Loss, norm and samples, and the scale beside them."""
    mine = run(run_data(tmp_path, **merge(FP16, {"layout": {"devices": 2, **layout}}))).out_dir
    assert_same_run(mine, control, TOLERANCE)
    assert [row["loss_scale"] for row in rows(mine)] == [2.0**16] * 6


def test_a_run_overflows_recovers_and_resumes_bitwise(tmp_path, monkeypatch):
    """A scale far too large at first: updates are left out, without a fault, until it fits; then a resume
    goes on with that scale."""
    monkeypatch.setattr(decide, "FIRST", 2.0**32)
    spec = merge(FP16, {"layout": {"micro_batch": 8}, "train": {"steps": 24}})
    whole = run(run_data(tmp_path, **spec)).out_dir
    found = [row["loss_scale"] for row in rows(whole)]
    skipped = [row.get("skipped", False) for row in rows(whole)]
    assert found[0] == 2.0**32
    assert 3 < sum(skipped) < 20
    assert not skipped[-1]
    halved = [after < before for before, after in itertools.pairwise(found)]
    assert halved == skipped[:-1]
    assert not events(whole, "nonfinite")
    assert [event["step"] for event in events(whole, "overflow")] == list(range(1, sum(skipped) + 1))
    assert all(row["loss"] is not None for row in rows(whole))
    parts = merge(spec, {"out_dir": str(tmp_path / "parts")})
    run(run_data(tmp_path, **parts), steps=3)
    monkeypatch.setattr(decide, "FIRST", 2.0**8)
    run(run_data(tmp_path, **parts))
    assert bits(whole) == bits(tmp_path / "parts")
    assert_same_bits(weights(whole), weights(tmp_path / "parts"))
