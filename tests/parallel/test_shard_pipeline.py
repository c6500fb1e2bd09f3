"""Replicas and ZeRO inside pipelines, whole and split backwards, tied heads, as `Step` runs them."""

from __future__ import annotations

from typing import Any

import pytest

from parallel.small_steps import ROWS, assert_same, train
from scalewright.spec.layout import Layout
from worlds import one_rank, run_world

FIVE = {"num_hidden_layers": 5}  # enough for two stages a rank
TIED = {**FIVE, "tie_word_embeddings": True}
# fp32 sums in another order: about 1e-7 (measured: below 5e-7). bf16 micro-batches of one row have the bf16
# gradients of one process; a weight near the middle of one of bf16's steps is then rounded another way.
TOLERANCE = {False: (2e-6, 2e-6), True: (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def controls() -> Any:
    """One process's training, by model and precision, made once."""
    trained: dict[Any, Any] = {}

    def get(changes: dict[str, Any], bf16: bool) -> dict[str, Any]:
        key = (changes is TIED, bf16)
        if key not in trained:
            mesh, _ = one_rank()
            trained[key] = train(mesh, Layout.parse({"micro_batch": 1}), bf16, changes)
        return trained[key]

    return get


def piped(zero_stage: int, schedule: str, devices: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "devices": devices, "pp": 2, "schedule": schedule, "zero_stage": zero_stage,
        "micro_batch": 1, "global_batch": ROWS, **more,
    }  # fmt: skip


CASES = [
    pytest.param(piped(0, "1f1b"), FIVE, False, marks=pytest.mark.slow),
    (piped(0, "zbv"), TIED, True),
    (piped(1, "zb-h1"), TIED, False),  # a tied head on another rank: two copies
    pytest.param(piped(1, "dualpipev"), TIED, True, marks=pytest.mark.slow),
    pytest.param(piped(2, "zbv"), TIED, False, marks=pytest.mark.slow),
    (piped(2, "interleaved"), FIVE, True),
    pytest.param(piped(3, "zb-interleaved"), FIVE, False, marks=pytest.mark.slow),
    (piped(3, "zbv"), TIED, True),
    (piped(3, "1f1b", offload="parameters"), TIED, False),
]
MORE = [
    (piped(zero_stage, schedule), model, bf16)
    for zero_stage in (0, 1, 2, 3)
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev")
    for model in (FIVE, TIED)
    for bf16 in (False, True)
]
MORE += [
    (piped(zero_stage, schedule, 8, dp_replicate=2), TIED, False)
    for zero_stage in (0, 1, 2, 3)
    for schedule in ("1f1b", "zbv")
]
MORE += [
    (piped(zero_stage, "1f1b", offload="optimizer", recompute="selective"), TIED, True) for zero_stage in (0, 1, 2, 3)
]


def check(layout: dict[str, Any], model: dict[str, Any], bf16: bool, controls: Any) -> None:
    assert_same(run_world(train, layout, bf16, model), controls(model, bf16), *TOLERANCE[bf16])


@pytest.mark.parametrize(("layout", "model", "bf16"), CASES)
def test_a_pipeline_trains_as_one_process_does(controls, layout, model, bf16):
    check(layout, model, bf16, controls)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "model", "bf16"), MORE)
def test_every_schedule_and_zero_stage(controls, layout, model, bf16):
    check(layout, model, bf16, controls)
