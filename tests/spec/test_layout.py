"""Layouts: nulls are derived, dumps are read back. Conflicts: test_layout_check.py."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout


def test_nulls_are_derived() -> None:
    layout = Layout.parse({"devices": 8, "tp": 2, "micro_batch": 3})
    assert (layout.sp, layout.virtual_stages, layout.zero_stage, layout.global_batch) == (True, 1, 3, 12)
    assert (layout.dp, layout.dp_shard, layout.accumulation, layout.stages) == (4, 4, 1, 1)
    assert Layout().zero_stage == 0
    assert Layout.parse({"devices": 2, "pp": 2, "schedule": "interleaved"}).virtual_stages == 2


@pytest.mark.parametrize(
    ("keys", "stage"),
    [
        ({"devices": 8}, 3),
        ({"devices": 8, "pp": 2}, 1),  # 3 would gather the parameters for every micro-batch
        ({"devices": 2, "pp": 2}, 1),
        ({"devices": 1, "offload": "optimizer"}, 0),
        ({"devices": 8, "pp": 2, "offload": "optimizer"}, 1),
        ({"devices": 8, "pp": 2, "offload": "parameters"}, 3),
        ({"devices": 8, "pp": 2, "offload": "all"}, 3),
        ({"devices": 8, "pp": 2, "zero_stage": 3}, 3),
    ],
)
def test_the_zero_stage_where_none_is_given(keys: dict[str, object], stage: int) -> None:
    assert Layout.parse(keys).zero_stage == stage


def test_stated_keys_are_those_set_and_not_derived() -> None:
    layout = Layout.parse({"devices": 8, "tp": 2, "sp": None, "schedule": "1f1b"})
    assert layout.stated() == {"devices": 8, "tp": 2, "schedule": "1f1b"}
    assert Layout.parse(layout.stated()) == layout


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"devices": 8, "tp": 2, "zero_stage": 1, "micro_batch": 2, "global_batch": 16, "precision": "bf16"},
        {"devices": 8, "tp": 2, "sp": False, "pp": 2, "schedule": "interleaved", "recompute": {"every": 2}},
        {"devices": 2, "pp": 2, "stage_layers": [3, 1], "offload": "parameters"},
    ],
)
def test_a_layout_is_written_with_no_default_and_nothing_derived(keys: dict[str, Any]) -> None:
    layout = Layout.parse(keys)
    assert layout.written() == keys
    assert Layout.parse(layout.dump()).written() == keys, "also with all keys set"


def test_a_layout_round_trips() -> None:
    for keys in ({}, {"devices": 8, "tp": 2, "recompute": {"every": 2}}, {"recompute": {"budget": 0.5}}):
        layout = Layout.parse(keys)
        assert Layout.parse(layout.dump()) == layout


def test_the_two_ways_of_dualpipe_are_one_cut() -> None:
    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": "dualpipe", "global_batch": 8})
    assert (layout.virtual_stages, layout.stages) == (2, 4)


@pytest.mark.parametrize("recompute", [{"budget": 1.5}, {"budget": -0.1}, {"every": 0}])
def test_a_recompute_number_out_of_range_is_one_line(recompute: dict[str, float]) -> None:
    (value,) = recompute.values()
    with pytest.raises(UserError, match=f"recompute [a-z]+ {value}") as caught:
        Layout.parse({"recompute": recompute})
    assert "use recompute {" in caught.value.how


def test_a_size_that_does_not_divide_has_fixes_on_either_side() -> None:
    """One of them keeps the 64 devices."""
    with pytest.raises(UserError, match=r"use devices 63, or tp (2|4)$"):
        Layout.parse({"devices": 64, "tp": 3})
    with pytest.raises(UserError, match=r"use devices 60$"):
        Layout.parse({"devices": 64, "tp": 3, "pp": 4})
