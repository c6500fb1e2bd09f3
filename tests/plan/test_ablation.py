"""The gain of each part of a layout is the difference to `predict` of the same layout without it."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright import api
from scalewright.plan.ablation import ablation
from scalewright.plan.predict import predict, together
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
FULL = {
    "devices": 64, "tp": 2, "pp": 4, "virtual_stages": 4, "schedule": "interleaved", "zero_stage": 1,
    "recompute": "selective", "micro_batch": 1, "global_batch": 512,
}  # fmt: skip


def entries(framework: str = "scalewright", **keys: Any) -> dict[str, dict[str, Any]]:
    layout = Layout.parse({"devices": 64, "global_batch": 512, **keys})
    return {
        row["what"]: row for row in together([ablation(predict(LLAMA, H100, layout, 8192, framework=framework))])[0]
    }


def seconds(**changes: Any) -> float:
    return predict(LLAMA, H100, Layout.parse({**FULL, **changes}), 8192).step_time_s


def test_each_part_is_taken_away_alone() -> None:
    parts = entries(**FULL)
    assert list(parts) == ["tp 2", "pp 4", "interleaved x 4", "zero 1", "recompute selective"]
    without = {
        "tp 2": {"tp": 1}, "interleaved x 4": {"schedule": "1f1b", "virtual_stages": 1},
        "zero 1": {"zero_stage": 0}, "recompute selective": {"recompute": "none"},
    }  # fmt: skip
    base = seconds()
    for what, changes in without.items():
        bare = seconds(**changes)
        assert parts[what]["step_time_s"] == pytest.approx(bare, rel=1e-9), what
        assert parts[what]["gain_pct"] == pytest.approx(100 * (bare / base - 1), abs=1e-6)
    assert parts["interleaved x 4"]["gain_pct"] > 1
    assert "pipeline bubble" in parts["interleaved x 4"]["why"]
    assert "% faster with it" in parts["interleaved x 4"]["why"]
    assert "costs" in parts["recompute selective"]["why"]


def test_a_part_that_saves_memory_states_the_need_without_it() -> None:
    row = entries(zero_stage=3)["zero 3"]
    assert not row["fits"]
    assert row["saves_gib"] > 50
    assert row["why"].startswith("zero 3: without it up to ")
    assert "GiB are needed, of 71.7 GiB usable" in row["why"]


def test_a_plain_layout_has_no_parts() -> None:
    assert entries(devices=1, global_batch=4, zero_stage=0) == {}
    assert "1f1b" not in " ".join(entries(pp=4, zero_stage=1))


def test_a_batch_that_does_not_divide_is_named() -> None:
    row = entries(tp=8, zero_stage=1, global_batch=8)["tp 8"]
    assert (row["step_time_s"], row["gain_pct"], row["fits"]) == (None, None, False)
    assert row["why"] == "tp 8: without it the batch doesn't divide among 64 devices"


def test_the_plain_schedule_is_one_that_the_trainer_has() -> None:
    """MaxText's pipeline has no 1F1B."""
    keys = {"devices": 64, "pp": 4, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 1}
    layout = Layout.parse({**keys, "global_batch": 512})
    prediction = predict(LLAMA, H100, layout, 8192, framework="maxtext")
    plain = Layout.parse({**keys, "schedule": "gpipe", "virtual_stages": 1, "global_batch": 512})
    row = next(row for row in together([ablation(prediction)])[0] if row["what"] == "interleaved x 2")
    bare = predict(LLAMA, H100, plain, 8192, framework="maxtext")
    assert row["step_time_s"] == pytest.approx(bare.step_time_s, rel=1e-9)


def test_both_answers_contain_it() -> None:
    answer = api.predict("llama-3.1-8b", "dgx-h100", FULL, 8192)
    assert {"what", "step_time_s", "gain_pct", "saves_gib", "fits", "why"} == set(answer["buys"][0])
    plan = api.plan("llama-3.1-8b", "dgx-h100", 64, 8192, 512, fix={"tp": 2, "pp": 4}, top=1)
    assert [row["what"] for row in plan["best"][0]["buys"]][:2] == ["tp 2", "pp 4"]
