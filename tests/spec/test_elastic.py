"""Layouts of the same run on other worlds."""

from __future__ import annotations

import pytest

from scalewright.spec.elastic import ElasticSpec, layouts_on
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec


def sizes(layout: Layout) -> tuple[int, int, int, int]:
    return layout.dp_replicate, layout.dp_shard, layout.micro_batch, layout.accumulation


@pytest.mark.parametrize(
    ("world", "first"),
    [
        (8, (1, 4, 3, 2)),
        (6, (1, 3, 2, 4)),  # 24 / (3 x 3) is no whole number: a smaller micro-batch
        (4, (1, 2, 3, 4)),
        (2, (1, 1, 3, 8)),
        (16, (1, 8, 3, 1)),
        (48, (1, 24, 1, 1)),
    ],
)
def test_tp_and_the_batch_stay(world: int, first: tuple[int, ...]) -> None:
    layout = Layout.parse({"devices": 8, "tp": 2, "micro_batch": 3, "global_batch": 24})
    made = list(layouts_on(layout, world))
    assert sizes(made[0]) == first
    assert {(x.tp, x.global_batch, x.devices) for x in made} == {(2, 24, world)}


@pytest.mark.parametrize("world", [1, 3, 7, 10, 50])
def test_worlds_that_never_fit(world: int) -> None:
    """1 3 7: tp 2 doesn't divide them; 10: five ranks of dp don't share 24; 50: nor do 25."""
    assert not list(layouts_on(Layout.parse({"devices": 8, "tp": 2, "micro_batch": 3, "global_batch": 24}), world))


@pytest.mark.parametrize(
    ("world", "replicas", "shard"), [(8, 2, 4), (4, 1, 4), (12, 3, 4), (6, 2, 3), (2, 2, 1), (1, 1, 1)]
)
def test_whole_shards_stay_before_whole_replicas(world: int, replicas: int, shard: int) -> None:
    layout = Layout.parse({"devices": 8, "dp_replicate": 2, "micro_batch": 1, "global_batch": 24})
    assert sizes(next(layouts_on(layout, world)))[:2] == (replicas, shard)


def test_experts_stay_whole() -> None:
    layout = Layout.parse({"devices": 8, "ep": 4, "global_batch": 24})
    assert [world for world in range(1, 13) if list(layouts_on(layout, world))] == [4, 8, 12]


def test_what_a_file_leaves_open_is_derived_again() -> None:
    """zero_stage is 3 on several devices and 0 on one; one that is set stays."""
    assert next(layouts_on(Layout.parse({"devices": 4, "global_batch": 8}), 1)).zero_stage == 0
    assert next(layouts_on(Layout.parse({"devices": 4, "global_batch": 8, "zero_stage": 1}), 1)).zero_stage == 1


def test_true_and_false() -> None:
    base = {"model": "tiny", "data": {"train": "data"}}
    assert RunSpec.parse({**base, "elastic": True}).elastic == ElasticSpec()
    assert RunSpec.parse({**base, "elastic": False}).elastic is None
    assert RunSpec.parse({**base, "elastic": {"min": 2}}).elastic == ElasticSpec(min=2)
    assert RunSpec.parse(RunSpec.parse({**base, "elastic": True}).dump()).elastic == ElasticSpec()
