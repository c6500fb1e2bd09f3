"""When fragments travel, and what `diloco` is refused with."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.diloco import DilocoSpec, check_diloco
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout


def parsed(**keys: Any) -> DilocoSpec:
    return DilocoSpec.parse(keys)


def test_all_at_once_every_inner_steps() -> None:
    spec = parsed(inner_steps=3)
    assert [step for step in range(1, 10) if spec.sent(step)] == [3, 6, 9]
    assert spec.applied(6, last=20) == [0]
    assert spec.applied(7, last=20) == []


def test_fragments_take_turns_and_arrive_later() -> None:
    """The picture in spec/diloco.py."""
    spec = parsed(inner_steps=6, fragments=3, overlap=1)
    assert {step: spec.sent(step) for step in range(11) if spec.sent(step)} == {2: [0], 4: [1], 6: [2], 8: [0], 10: [1]}
    assert [step for step in range(11) if spec.applied(step, last=99)] == [3, 5, 7, 9]
    assert spec.applied(9, last=9) == [0, 1, 2]


@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_each_fragment_is_sent_once_in_inner_steps_steps(fragments: int, overlap: int) -> None:
    spec = parsed(inner_steps=8, fragments=fragments, overlap=overlap)
    for first in (1, 8, 13):
        sent = [number for step in range(first + 8, first + 16) for number in spec.sent(step)]
        assert sorted(sent) == list(range(fragments))
    away = [step for step in range(100, 108) for _ in spec.sent(step)]
    most = max(sum(s <= step < s + overlap for s in range(80, 120) if spec.sent(s)) for step in away)
    assert spec.under_way == min(most, fragments)


def test_layers_go_round_the_fragments() -> None:
    spec = parsed(inner_steps=4, fragments=2)
    assert [spec.fragment_of(layer + 1) for layer in (-1, 0, 1, 2, 3)] == [0, 1, 0, 1, 0]


def test_what_is_mixed_without_being_told() -> None:
    assert parsed().kept_share == 0.0
    assert parsed(overlap=2).kept_share == 0.5
    assert parsed(overlap=2, mixing=0.0).kept_share == 0.0


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"inner_steps": 5, "fragments": 2}, "fragments 2 does not divide inner_steps 5"),
        ({"inner_steps": 4, "overlap": 4}, "overlap 4 is not less than inner_steps 4"),
        ({"outer_dtype": "fp16"}, "outer_dtype"),
        ({"inner_step": 4}, "unknown key 'inner_step'"),
    ],
)
def test_settings_that_contradict_each_other(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        DilocoSpec.parse(keys)


@pytest.mark.parametrize(
    ("layout", "keys", "problem"),
    [
        ({"devices": 2}, {}, "dp_replicate is 1"),
        ({"devices": 4, "dp_replicate": 2, "offload": "optimizer"}, {}, "offload: optimizer"),
        ({"devices": 2, "dp_replicate": 2}, {"inner_steps": 8, "fragments": 8}, "3 layers, embedding"),
    ],
)
def test_layouts_without_islands(layout: dict[str, Any], keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_diloco(DilocoSpec.parse(keys), Layout.parse(layout), layers=3)
