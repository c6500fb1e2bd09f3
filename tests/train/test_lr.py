"""The learning rate at the corners of its schedules."""

from __future__ import annotations

from math import cos, pi

import pytest

from scalewright.spec.run import ScheduleSpec
from scalewright.train.lr import learning_rate

KINDS = ["constant", "linear", "cosine", "wsd"]


def rates(total: int = 100, base: float = 2.0, **schedule: object) -> list[float]:
    """The rates of updates 1 .. total (entry 0 is a filler)."""
    spec = ScheduleSpec.parse(schedule)
    return [float("nan"), *(learning_rate(spec, base, step, total) for step in range(1, total + 1))]


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_linear_and_ends_at_the_base(kind):
    found = rates(kind=kind, warmup_steps=10)
    assert found[1] == pytest.approx(0.2)
    assert found[5] == pytest.approx(1.0)
    assert found[10] == 2.0
    assert found[11] <= 2.0
    assert max(found[1:]) == 2.0


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_the_last_update_has_the_smallest_rate(kind, ratio):
    found = rates(kind=kind, min_ratio=ratio)
    assert found[100] == pytest.approx(2.0 * ratio, abs=1e-15)
    assert min(found[1:]) == found[100]
    spec = ScheduleSpec.parse({"kind": kind, "min_ratio": ratio})
    assert learning_rate(spec, 2.0, 150, 100) == pytest.approx(2.0 * ratio, abs=1e-15)  # stays there


def test_constant_stays():
    assert set(rates(kind="constant")[1:]) == {2.0}


def test_the_shapes():
    linear, cosine = rates(kind="linear", min_ratio=0.0), rates(kind="cosine", min_ratio=0.1)
    assert linear[50] == pytest.approx(1.0)
    assert linear[75] == pytest.approx(0.5)
    assert cosine[50] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert cosine[25] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + cos(pi / 4))))


def test_wsd_is_stable_and_then_decays():
    found = rates(kind="wsd", warmup_steps=5, min_ratio=0.0)
    assert set(found[5:81]) == {2.0}  # the decay takes the last fifth
    assert found[90] == pytest.approx(1.0)
    assert found[81] == pytest.approx(2.0 * 19 / 20)


def test_decay_steps():
    """wsd counts them from the end, the others from the end of the warm-up."""
    wsd = rates(kind="wsd", decay_steps=50, min_ratio=0.0)
    assert (wsd[50], wsd[75]) == (2.0, pytest.approx(1.0))
    linear = rates(kind="linear", warmup_steps=10, decay_steps=20, min_ratio=0.1)
    assert linear[20] == pytest.approx(2.0 * 0.55)
    assert linear[30] == linear[100] == pytest.approx(0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_lengths(kind):
    """One step; a warm-up as long as the run, or longer; no decay at all: numbers, none above the base."""
    ends_low = kind != "constant"
    assert rates(1, kind=kind)[1] == (pytest.approx(0.2) if ends_low else 2.0)
    assert rates(10, kind=kind, warmup_steps=10)[10] == 2.0
    assert rates(10, kind=kind, warmup_steps=20)[10] == 1.0
    at_once = rates(10, kind=kind, decay_steps=0, warmup_steps=2)
    assert at_once[2] == 2.0
    assert all(0.2 <= rate <= 2.0 for rate in at_once[2:])


def test_a_warmup_that_reaches_into_the_decay():
    found = rates(kind="wsd", warmup_steps=90, decay_steps=20, min_ratio=0.0)
    assert (found[90], found[95], found[100]) == (2.0, pytest.approx(1.0), 0.0)
