"""Layouts: nulls are derived, and a conflict names both values and one that really works."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout, check_layout
from scalewright.spec.model import ModelSpec

MODEL = ModelSpec.parse(
    {
        "vocab_size": 128,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    }
)


def test_nulls_are_derived() -> None:
    layout = Layout.parse({"devices": 8, "tp": 2, "micro_batch": 3})
    assert (layout.sp, layout.virtual_stages, layout.zero_stage, layout.global_batch) == (True, 1, 3, 12)
    assert (layout.dp, layout.dp_shard, layout.accumulation, layout.stages) == (4, 4, 1, 1)
    assert Layout().zero_stage == 0
    assert Layout.parse({"devices": 2, "pp": 2, "schedule": "interleaved"}).virtual_stages == 2


def test_a_layout_round_trips() -> None:
    for keys in ({}, {"devices": 8, "tp": 2, "recompute": {"every": 2}}, {"recompute": {"budget": 0.5}}):
        layout = Layout.parse(keys)
        assert Layout.parse(layout.dump()) == layout


# (layout keys, both values that conflict, the key that the message tells how to set)
CONFLICTS: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"devices": 7, "tp": 2}, ("7", "tp 2"), "devices"),
    ({"devices": 8, "dp_replicate": 3}, ("3", "dp 8"), "dp_replicate"),
    ({"devices": 2, "global_batch": 5}, ("5", "dp 2"), "global_batch"),
    ({"devices": 4, "micro_batch": 2, "global_batch": 12}, ("12", "micro_batch 2"), "global_batch"),
    ({"devices": 5, "tp": 5}, ("12", "tp 5"), "tp"),
    ({"devices": 6, "tp": 6}, ("4", "tp 6"), "tp"),
    ({"devices": 24, "tp": 24}, ("12", "tp 24"), "tp"),
    ({"devices": 8, "pp": 8}, ("8 pipeline stages", "6 layers"), "pp"),
]


@pytest.mark.parametrize(("keys", "values", "mended"), CONFLICTS, ids=str)
def test_a_conflict_names_both_values_and_one_that_works(
    keys: dict[str, Any], values: tuple[str, ...], mended: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_layout(Layout.parse(keys), MODEL)
    for value in values:
        assert value in caught.value.what
    found = re.search(rf"use {mended} (\d+)", caught.value.how)
    assert found, caught.value
    check_layout(Layout.parse({**keys, mended: int(found.group(1))}), MODEL)


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"devices": 2, "ep": 2}, "no experts"),
        ({"devices": 2, "pp": 2, "stage_layers": [1, 2, 3]}, "2 stages"),
        ({"devices": 2, "pp": 2, "stage_layers": [1, 2]}, "6 layers"),
        ({"sp": True}, "tp is 1"),
        ({"schedule": "zbv"}, "pp is 1"),
        ({"devices": 8, "ep": 3}, "ep 3"),
    ],
)
def test_what_cannot_work_is_refused(keys: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        check_layout(Layout.parse(keys), MODEL)


def test_sequences_must_divide() -> None:
    layout = Layout.parse({"devices": 4, "cp": 4})
    with pytest.raises(UserError, match="seq_len 100") as caught:
        check_layout(layout, MODEL, 100)
    check_layout(layout, MODEL, int(re.findall(r"use seq_len (\d+)", str(caught.value))[0]))
    with pytest.raises(UserError, match="ulysses"):
        check_layout(Layout.parse({"devices": 8, "cp": 8, "cp_kind": "ulysses"}), MODEL, 64)
