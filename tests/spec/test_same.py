"""Equal networks have no differences, however they are written; others are named by the key that differs."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.model import ModelSpec
from scalewright.spec.same import differences

BASE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "context": 256,
}  # fmt: skip
MOE = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 48}


def spec(**keys: Any) -> ModelSpec:
    return ModelSpec.parse({**BASE, **keys})


def scaled(**keys: Any) -> dict[str, Any]:
    return {"rope": {"scaling": keys}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"name": "x", "family": "gpt2", "head_dim": 8, "query_scale": 8**-0.5, "learned_positions": 9}),
        ({}, {"sliding_window": 5, "rope": {"local_theta": 9.0}, "context": 99}),
        ({}, scaled(kind="yarn", factor=1.0)),
        ({"sliding_window": 5, "window_pattern": [True, False]},
         {"sliding_window": 5, "window_pattern": [True, False, True, False]}),
        ({"rope_every_not": 3}, {"rope_every_not": 3, "positions": "rope"}),
        (scaled(kind="yarn", factor=4.0), scaled(kind="yarn", factor=4.0, original_context=256, mscale=0.5)),
        (scaled(kind="linear", factor=4.0), scaled(kind="linear", factor=4.0, beta_fast=3.0)),
        ({"moe": {**MOE, "first_k_dense": 1}}, {"moe": {**MOE, "dense_layers": [0]}}),
        ({"moe": {**MOE, "num_shared_experts": 2}},
         {"moe": {**MOE, "num_shared_experts": 1, "shared_intermediate_size": 96}}),
        ({"moe": MOE}, {"moe": {**MOE, "groups": 4, "top_groups": 4}, "intermediate_size": 7}),
        ({"positions": "none"}, {"positions": "none", "rope": {"theta": 5.0, "fraction": 0.5}}),
    ],
)  # fmt: skip
def test_equal_networks(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differences(spec(**one), spec(**other)) == []


@pytest.mark.parametrize(
    ("one", "other", "keys"),
    [
        ({"rope": {"fraction": 0.5}}, {}, ["rope.fraction"]),
        ({"rope": {"theta": 1e4}}, {"rope": {"theta": 1.0001e4}}, ["rope.theta"]),
        (scaled(kind="yarn", factor=1.0), scaled(kind="yarn", factor=2.0), ["rope.scaling.factor"]),
        (scaled(kind="dynamic", factor=1.0), {}, ["rope.scaling"]),
        (scaled(kind="llama3", factor=8.0), scaled(kind="llama3", factor=8.0, original_context=9),
         ["rope.scaling.original_context"]),
        (scaled(kind="yarn", factor=4.0), scaled(kind="yarn", factor=4.0, mscale=0.5, mscale_all_dim=1.0),
         ["rope.scaling.mscale", "rope.scaling.mscale_all_dim"]),
        ({"head_dim": 16}, {}, ["head_dim"]),
        ({"positions": "alibi"}, {}, ["positions"]),
        ({"moe": MOE}, {}, ["moe"]),
        ({"moe": {**MOE, "every": 2}}, {"moe": MOE}, ["moe.every"]),
        ({"moe": {**MOE, "num_shared_experts": 1, "shared_intermediate_size": 9}},
         {"moe": {**MOE, "num_shared_experts": 1}}, ["moe.shared_intermediate_size"]),
        ({"sliding_window": 5, "window_pattern": [True]},
         {"sliding_window": 5, "window_pattern": [True, False]},
         ["window_pattern"]),
    ],
)  # fmt: skip
def test_what_differs_is_named(one: dict[str, Any], other: dict[str, Any], keys: list[str]) -> None:
    assert [item.key for item in differences(spec(**one), spec(**other))] == keys
    assert differences(spec(**other), spec(**one))
