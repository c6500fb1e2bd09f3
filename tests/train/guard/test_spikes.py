"""What counts as a spike: none of thousands of healthy steps, each of those that are meant, on the device."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from runs import assert_same_bits, bits, events, merge, rows, run, run_data, weights
from scalewright.spec.guard import GuardSpec
from scalewright.train.columns import FACTOR, LOSS, NORM, SKIPPED, SPIKE, USUAL, WIDTH
from scalewright.train.guard import spikes
from scalewright.train.guard.decide import Guard
from scalewright.train.guard.spikes import Usual, ZClip

CPU = torch.device("cpu")


def judged(guard: Guard, loss: float, norm: float, clip: float = 0.0) -> tuple[list[float], float]:
    """A step's columns and factor."""
    report = torch.zeros(WIDTH)
    report[LOSS], report[NORM] = loss, norm
    verdict = guard.judge(report, guard.note_local(report), clip)
    return report.tolist(), float(verdict.factor)


# How gradient norms of healthy runs are spread about their level: nearly normal, skewed, and drifting.
SPREADS = {
    "lognormal 50%": lambda r, step: math.exp(0.5 * r.gauss(0, 1)),
    "drifting": lambda r, step: (3 + 20 * math.exp(-step / 50) + step / 2000) * math.exp(0.15 * r.gauss(0, 1)),
    "constant": lambda r, step: 0.25,
}


@pytest.mark.parametrize("name", SPREADS)
def test_no_healthy_step_is_a_spike(name):
    """2,000 steps of a falling, noisy loss: none is."""
    numbers, guard = random.Random(7), Guard(GuardSpec(spike="skip"), CPU)
    for step in range(2000):
        loss = 2.2 + 8 * math.exp(-step / 100) + 0.03 * numbers.gauss(0, 1)
        report, _ = judged(guard, loss, SPREADS[name](numbers, step))
        assert not report[SPIKE], (step, report)
        assert not report[SKIPPED]


@pytest.mark.parametrize(("spike", "skips"), [("skip", True), ("log", False)])
def test_spikes_are_seen(spike, skips):
    """Of the loss and of the norm, two in a row as well; not before there is a history; a new level is taken
    in the end."""
    numbers, guard = random.Random(7), Guard(GuardSpec(spike=spike), CPU)

    def step(loss: float = 2.5, norm: float = 0.5) -> list[float]:
        noise = numbers.gauss(0, 1)
        return judged(guard, loss + 0.02 * noise, norm * math.exp(0.1 * noise))[0]

    assert not step(norm=50)[SPIKE]
    for _ in range(100):
        assert not step()[SPIKE]
    for _ in range(2):
        report = step(loss=3.5)
        assert (report[SPIKE], report[SKIPPED]) == (1, skips)
        assert report[USUAL] == pytest.approx(2.5, rel=0.02)
    report = step(norm=10)
    assert (report[SPIKE], report[SKIPPED]) == (2, skips)
    assert report[USUAL] == pytest.approx(0.5, rel=0.2)
    assert not step(loss=0.5, norm=0.01)[SPIKE]  # far below is no spike
    assert sum(bool(step(loss=3.5)[SPIKE]) for _ in range(128)) < 70


def test_non_finite_steps_are_not_remembered():
    guard = Guard(GuardSpec(), CPU)
    for _ in range(70):
        judged(guard, 2.5, 0.5)
    assert guard.usual is not None
    before = guard.usual.window.clone()
    report, _ = judged(guard, math.nan, 0.5)
    assert report[SKIPPED]
    assert not report[SPIKE]
    assert torch.equal(guard.usual.window.nan_to_num(-1), before.nan_to_num(-1))


def by_the_paper(norms: list[float]) -> list[float]:
    """ZClip, algorithm 1 of arXiv:2504.02507, in plain numbers: the norm that each gradient is left with."""
    seen: list[float] = []
    mean, variance, left = 0.0, 0.0, []
    for norm in norms:
        kept = norm
        if len(seen) < 25:
            seen.append(norm)
            mean = sum(seen) / len(seen)
            variance = sum((x - mean) ** 2 for x in seen) / len(seen)
        else:
            z = (norm - mean) / (math.sqrt(variance) + 1e-6)
            if z > 2.5:
                kept = mean + 2.5**2 / z * math.sqrt(variance)
            mean = 0.97 * mean + 0.03 * kept
            variance = 0.97 * variance + 0.03 * (kept - mean) ** 2
        left.append(kept)
    return left


def test_zclip_is_the_papers():
    numbers = random.Random(3)
    norms = [math.exp(0.2 * numbers.gauss(0, 1)) * (8 if step in (40, 41, 90) else 1) for step in range(120)]
    guard = Guard(GuardSpec(spike="zclip"), CPU)
    found = []
    for norm in norms:
        report, factor = judged(guard, 2.5, norm)
        assert bool(report[SPIKE]) == (report[FACTOR] < 1)
        found.append(norm * factor)
    assert found == pytest.approx(by_the_paper(norms), rel=1e-4)  # the variance of 25 norms, in fp32
    assert found[40] < 0.5 * norms[40]
    assert judged(guard, 2.5, 1.0, clip=0.1)[1] == pytest.approx(0.1, rel=1e-4)


def test_statistics_travel_exactly():
    """Through JSON, to the bit, also when the window isn't full."""
    usual, zclip = Usual(CPU), ZClip(CPU)
    for step in range(40):
        usual.look(torch.tensor(2.0 / 3 + step), torch.tensor(0.1 * step), torch.tensor(True))
        zclip.look(torch.tensor(0.1 * step), torch.tensor(True))
    other, another = Usual(CPU), ZClip(CPU)
    other.load(json.loads(json.dumps(usual.state())))
    another.load(json.loads(json.dumps(zclip.state())))
    assert torch.equal(usual.window.nan_to_num(-1), other.window.nan_to_num(-1))
    assert torch.equal(zclip.moments, another.moments)


def test_a_run_that_clips_resumes_bitwise(tmp_path, monkeypatch):
    """ZClip's moments are in the checkpoint: a resume is the same run."""
    monkeypatch.setattr(spikes, "ZCLIP_SIGMAS", 0.1)  # or so short and healthy a run clips nothing
    spec = {"layout": {"micro_batch": 8}, "train": {"steps": 36, "guard": {"spike": "zclip"}}}
    spec = merge(spec, {"optimizer": {"clip_norm": 0.0}, "checkpoint": {"at_end": True}})
    whole = run(run_data(tmp_path, **spec)).out_dir
    clipped = events(whole, "spike")
    assert any(event["step"] > 30 for event in clipped)
    assert {event["action"] for event in clipped} == {"clipped"}
    assert all(event["factor"] < 1 and event["of"] == "grad_norm" for event in clipped)
    assert not any(row.get("skipped") for row in rows(whole))
    parts = merge(spec, {"out_dir": str(tmp_path / "parts")})
    run(run_data(tmp_path, **parts), steps=30)
    run(run_data(tmp_path, **parts))
    assert bits(whole) == bits(tmp_path / "parts")
    assert_same_bits(weights(whole), weights(tmp_path / "parts"))
