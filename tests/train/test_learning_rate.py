"""A run of so many tokens ends at them, whatever its batch was on the way, and its rate follows.

The learning rate at the corners of its schedules.
"""

from __future__ import annotations

from math import cos, pi
from typing import Any

import pytest

from runs import rows, run, run_data
from scalewright.spec.run import ScheduleSpec
from scalewright.train.batches import DataPosition
from scalewright.train.learning_rate import find_horizon, learning_rate

COSINE = ScheduleSpec(kind="cosine", warmup_steps=3)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (128, 1), (129, 2), (1280, 10), (1.28e3, 10)])
def test_tokens_become_steps(tokens, steps):
    assert find_horizon(DataPosition(), 0, tokens, 128).total == steps


def test_with_one_batch_the_rate_is_that_of_the_steps_to_the_bit():
    begun = find_horizon(DataPosition(), 20, 2560, 128)
    resumed = find_horizon(DataPosition(7, 56, 896), 20, 2560, 128, begun.unit)
    for step in range(1, 21):
        wanted = learning_rate(COSINE, 0.3, step, 20)
        assert begun.rate(COSINE, 0.3, step) == wanted
        assert resumed.rate(COSINE, 0.3, step) == wanted
        assert find_horizon(DataPosition(), 20, None, 128).rate(COSINE, 0.3, step) == wanted


@pytest.mark.parametrize("factor", [0.5, 2, 3])
def test_with_another_batch_the_rate_goes_on_where_it_was_and_ends_at_its_floor(factor):
    before = find_horizon(DataPosition(), 0, 25600, 128)
    after = find_horizon(DataPosition(100, 800, 12800), 0, 25600, int(128 * factor), before.unit)
    left = after.total - 100
    assert left == -(-12800 // int(128 * factor))
    assert after.rate(COSINE, 1.0, 101) == pytest.approx(before.rate(COSINE, 1.0, 100), abs=0.03)
    assert after.rate(COSINE, 1.0, after.total) == pytest.approx(0.1, abs=1e-9)
    halfway = after.rate(COSINE, 1.0, 100 + left // 2)  # 75% of the tokens
    assert halfway == pytest.approx(before.rate(COSINE, 1.0, 150), abs=0.03)


def test_a_run_that_has_its_tokens_is_done():
    assert find_horizon(DataPosition(20, 160, 2560), 0, 2000, 128).total == 20


def test_a_run_ends_at_its_tokens_after_its_batch_changed(tmp_path):
    """Asked for 2,560 tokens, it once ended at 1,920, with its rate at the floor."""
    data: dict[str, Any] = run_data(
        tmp_path, lr_schedule={"kind": "linear", "min_ratio": 0.0}, checkpoint={"at_end": True}
    )
    data["train"] = {"tokens": 2560}
    run(data, steps=10)  # of 128 tokens
    result = run(data, ["layout.global_batch=16"])
    found = rows(result.out_dir)
    assert [row["tokens"] for row in found] == [*range(128, 1281, 128), *range(1536, 2561, 256)]
    assert [row["lr"] for row in found] == pytest.approx([0.5 * (1 - row["tokens"] / 2560) for row in found])


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
