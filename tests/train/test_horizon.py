"""A run of so many tokens ends at them, whatever its batch was on the way, and its rate follows."""

from __future__ import annotations

from typing import Any

import pytest

from runs import rows, run, run_data
from scalewright.spec.run import ScheduleSpec
from scalewright.train.batches import DataPosition
from scalewright.train.horizon import find_horizon
from scalewright.train.lr import learning_rate

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
