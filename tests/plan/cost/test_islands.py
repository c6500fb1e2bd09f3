"""Islands in the price: less is sent, and what is sent late is hidden; states and updates cost more."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.api import plan, predict
from scalewright.spec.errors import UserError

KEYS: dict[str, Any] = {"devices": 64, "dp_replicate": 8, "zero_stage": 3, "micro_batch": 1, "global_batch": 128}


def price(diloco: dict[str, Any] | None, **keys: Any) -> dict[str, Any]:
    return predict("llama-3.1-8b", "dgx-h100", {**KEYS, **keys}, 4096, diloco=diloco, explain=False)


def test_traffic_falls_with_the_steps_between() -> None:
    """Of replicas every fp32 gradient, of islands their n-th part: 4 bytes of a rank's share of 8.03e9."""
    plain, fifty, ten = price(None), price({"inner_steps": 50}), price({"inner_steps": 10})
    part = 4 * 8.03e9 / 8
    assert plain["comm_bytes"]["dp"] - fifty["comm_bytes"]["dp"] == pytest.approx(part * 49 / 50, rel=0.01)
    assert ten["comm_bytes"]["dp"] - fifty["comm_bytes"]["dp"] == pytest.approx(part * 4 / 50, rel=0.01)
    eight = price({"inner_steps": 10, "outer_dtype": "int8"})
    saved = ten["comm_bytes"]["dp"] - eight["comm_bytes"]["dp"]
    assert saved == pytest.approx(part / 10 * (1 - 2 * 260 / 256 / 4), rel=0.01)


def test_states_of_the_outer_optimizer() -> None:
    plain = price(None)["memory_gib"]["optimizer"]
    shard = 8.03e9 / 8 / 2**30
    for keys, size in (({}, 8), ({"outer_dtype": "bf16"}, 12), ({"outer_momentum": 0.0}, 4)):
        more = price({"inner_steps": 50, **keys})["memory_gib"]["optimizer"] - plain
        assert more == pytest.approx(size * shard, rel=0.01)


def test_time_that_inner_steps_hide() -> None:
    exposed = {
        overlap: price({"inner_steps": 10, "overlap": overlap})["time_breakdown_s"]["dp_exposed"] for overlap in (0, 1)
    }
    assert price(None)["time_breakdown_s"]["dp_exposed"] > exposed[0] > exposed[1]


def test_a_plan_needs_islands_in_all_its_layouts() -> None:
    keys: dict[str, Any] = {"devices": 16, "seq_len": 4096, "global_batch": 32}
    with pytest.raises(UserError, match="diloco makes islands of replicas"):
        plan("llama-3.2-1b", "dgx-h100", diloco={"inner_steps": 50}, **keys)
    answer = plan("llama-3.2-1b", "dgx-h100", diloco={"inner_steps": 50}, fix={"dp_replicate": 2}, **keys)
    assert answer["best"][0]["layout"]["dp_replicate"] == 2
    assert answer["best"][0]["diloco"]["inner_steps"] == 50
    assert "diloco:" in answer["run_yaml"]


def test_other_trainers_are_priced_without() -> None:
    with pytest.raises(UserError, match="megatron is priced without diloco"):
        predict("llama-3.1-8b", "dgx-h100", KEYS, 4096, framework="megatron", diloco={"inner_steps": 50})
