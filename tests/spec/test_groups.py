"""The groups of a run as data: which axes share, in which order, and how many of what at which size."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.grid import AXES, Grid, make_grid
from scalewright.spec.groups import (
    APART,
    EXPERTS,
    GLOO_FILES,
    HEADS,
    LANES,
    USED,
    AxisGroups,
    GroupCost,
    control_row,
    cost,
    files,
    plan_groups,
    used_axes,
)
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

EXPERT_KEYS = {"num_experts": 64, "top_k": 2, "moe_intermediate_size": 8}


def small_spec(**keys: Any) -> ModelSpec:
    """The smallest model of all, with other keys."""
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return ModelSpec.parse({**sizes, "intermediate_size": 8, **keys})


def planned(layout: dict[str, Any], kv_heads: int = 8, **keys: Any) -> tuple[tuple[AxisGroups, ...], Grid]:
    """The groups that a run on GPUs makes, and its grid; `model`: keys of its model."""
    parsed, model = Layout.parse(layout), small_spec(**keys.pop("model", {}))
    grid = make_grid(parsed, kv_heads)
    return plan_groups(grid, used_axes(parsed, model), gpu=True, **keys), grid


@pytest.mark.parametrize("layout", [{}, {"zero_stage": 0}, {"dp_replicate": 2, "zero_stage": 3}])
def test_axes_are_those_that_the_run_communicates_over(layout):
    """FSDP's axes where it shards, those of whole replicas where it doesn't."""
    parsed = Layout.parse({"devices": 4, "zero_stage": 1, **layout})
    sharded = {"gradient", "ehsdp"} if parsed.zero_stage else {"dp_replicate", "fsdp", "efsdp"}
    left = [axis for axis in USED if axis not in sharded]
    tied = small_spec(tie_word_embeddings=True)
    assert used_axes(parsed, small_spec(tie_word_embeddings=True, moe=EXPERT_KEYS)) == tuple(left)
    assert used_axes(parsed, tied) == tuple(axis for axis in left if axis not in EXPERTS)
    assert set(used_axes(parsed, tied)) - set(used_axes(parsed, small_spec())) == {"tie"}
    assert used_axes(parsed, None) == used_axes(parsed, small_spec())


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_islands_have_groups_of_their_own_and_those_that_outer_steps_travel_over(zero_stage):
    parsed = Layout.parse({"devices": 4, "dp_replicate": 2, "zero_stage": zero_stage})
    islands = {"island", "islands", "dp_replicate"}
    assert islands <= set(used_axes(parsed, small_spec(), islands=True))


def test_zero_over_one_rank_is_replication_unless_it_is_offloaded():
    alone = Layout.parse({"devices": 2, "dp_replicate": 2, "zero_stage": 3})
    assert "gradient" in used_axes(alone, None)
    offloaded = Layout.parse({"devices": 2, "dp_replicate": 2, "zero_stage": 3, "offload": "parameters"})
    assert "fsdp" in used_axes(offloaded, None)


# 70B's heads; what is counted: groups of the world, splits, groups of a rank, Gloo's files of a rank.
# tp 8 at 64 ranks: 1 of all ranks + 8 of tp + 8 of fsdp and loss + 1 of control, 63 + 4 files.
# pp 8, tp 8 at 512: 1 + 6 lanes and ways x 64 + 64 of tp + 64 of fsdp; control: 32 rows of 16 and the heads.
TIED = {"tie_word_embeddings": True}
COUNTS = {
    "zero 3 on a node": ({"devices": 8, "zero_stage": 3}, {}, GroupCost(2, 0, 2, 11)),
    "tp 8 on a node": ({"devices": 8, "tp": 8}, {}, GroupCost(2, 0, 2, 11)),  # torch's own is tp's
    "tp 8": ({"devices": 64, "tp": 8, "zero_stage": 1}, {}, GroupCost(18, 2, 4, 67)),
    "pp 8, tp 8": (
        {"devices": 512, "tp": 8, "pp": 8, "zero_stage": 1},
        {},
        GroupCost(1 + 6 * 64 + 64 + 64 + 33, 8, 11, 15 + 31 + 2 * GLOO_FILES),
    ),
    "pp 8, tp 8, 1,024 ranks, tied": (
        {"devices": 1024, "tp": 8, "pp": 8, "zero_stage": 1},
        TIED,
        GroupCost(1 + 6 * 128 + 128 + 64 + 128 + 33, 9, 12, 31 + 31 + 2 * GLOO_FILES),
    ),
    "HSDP": (
        {"devices": 1024, "tp": 8, "pp": 8, "dp_replicate": 4, "zero_stage": 3},
        {},
        # dp_replicate, fsdp and loss join other ranks each: 256, 256 and 64 groups
        GroupCost(1 + 6 * 128 + 128 + 256 + 256 + 64 + 33, 10, 13, 70),
    ),
    "experts": (
        {"devices": 1024, "tp": 8, "pp": 8, "ep": 16, "etp": 8, "zero_stage": 1},
        {"moe": EXPERT_KEYS},
        # ep is apart from fsdp, whose ranks it joins, and etp from tp; efsdp has one rank
        GroupCost(1 + 6 * 128 + 128 + 64 + 64 + 128 + 33, 10, 13, 70),
    ),
    "experts, HSDP": (
        {"devices": 1024, "tp": 8, "pp": 8, "dp_replicate": 4, "ep": 4, "zero_stage": 3},
        {"moe": EXPERT_KEYS, **TIED},
        # ep: 4 ranks next to each other; efsdp: 8 of them
        GroupCost(1 + 6 * 128 + 128 + 256 + 256 + 64 + 256 + 128 + 128 + 33, 13, 16, 70),
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_how_many_groups_a_run_makes(name):
    layout, model, expected = COUNTS[name]
    plan, grid = planned(layout, model=model)
    counted = cost(grid, plan, gpu=True)
    assert counted == expected
    assert counted.splits <= 13
    assert counted.sockets < 100


def test_with_offloaded_weights_gloo_joins_the_ranks_that_sum_on_the_host():
    plan, grid = planned({"devices": 64, "tp": 8, "zero_stage": 3}, kv_heads=2, host_sums=True)
    host = {groups.axis: groups for groups in plan if groups.backend == "gloo"}
    assert set(host) == {"control", "tp_host", "kv_host"}
    assert cost(grid, plan, gpu=True).sockets == files(64) + files(8) + files(4)


def test_on_cpus_every_group_is_gloos():
    grid = make_grid(Layout.parse({"devices": 4, "tp": 2, "pp": 2}))
    plan = plan_groups(grid, used_axes(Layout.parse({"devices": 4, "tp": 2, "pp": 2}), None), gpu=False)
    counted = cost(grid, plan, gpu=False)
    # of all ranks: torch's own and control; of two: pp_down, pp_up, tp
    assert counted == GroupCost(1 + 1 + 3 * 2, 0, 5, 2 * files(4) + 3 * files(2))


def test_one_rank_needs_nothing():
    grid = make_grid(Layout())
    assert plan_groups(grid, gpu=True) == ()
    assert cost(grid, (), gpu=True) == GroupCost(0, 0, 0, 0)


@pytest.mark.parametrize(
    "layout",
    [
        {"devices": 16, "tp": 2, "cp": 2, "dp_replicate": 2, "ep": 4, "zero_stage": 3},
        {"devices": 32, "tp": 4, "pp": 4, "zero_stage": 0},
        {"devices": 12, "tp": 3, "pp": 2, "dp_replicate": 2, "zero_stage": 1},
    ],
)
def test_axes_share_groups_where_they_join_the_same_ranks(layout):
    """But those apart; and every group of an axis is of the same axis that it shares with."""
    plan, grid = planned(layout, kv_heads=1, model={"moe": EXPERT_KEYS, **TIED})
    by_axis = {groups.axis: groups for groups in plan}
    assert set(by_axis) <= {*AXES, "kv", "tie", HEADS, *LANES}
    for groups in plan:
        source = "pp" if groups.axis in LANES else groups.axis
        if groups.axis != HEADS:
            assert groups.ranks == tuple(ranks for ranks in grid.groups(source) if len(ranks) > 1)
        if groups.axis in APART or groups.axis in LANES:
            assert groups.same_as is None
        elif groups.same_as == "default":
            assert groups.ranks == (tuple(range(grid.world)),)
        elif groups.same_as is not None:
            assert by_axis[groups.same_as].ranks == groups.ranks
    made = [groups for groups in plan if groups.same_as is None and groups.axis not in (*APART, *LANES)]
    assert len({groups.ranks for groups in made}) == len(made)
    for a in made:  # all groups of two axes are the same, or none is
        for b in made:
            assert a is b or not set(a.ranks) & set(b.ranks)


def test_the_order_in_which_groups_are_made():
    """Those that join all ranks, then tie, then Gloo's: see the file's own words on names."""
    layout = {"devices": 256, "tp": 2, "pp": 4, "zero_stage": 3, "offload": "parameters"}
    plan, grid = planned(layout, model=TIED, host_sums=True)
    axes = [groups.axis for groups in plan]
    assert axes[axes.index("tie") + 1 :] == ["control", HEADS, "tp_host", "tie_host"]
    for groups in plan[: axes.index("tie")]:
        assert sorted(rank for ranks in groups.ranks for rank in ranks) == list(range(grid.world))


@pytest.mark.parametrize(("world", "row"), [(2, 2), (64, 64), (65, 8), (512, 16), (1024, 32), (4096, 64)])
def test_rows_of_control(world, row):
    """Flat while a rank can have a socket for every other; then rows that end where the ranks do."""
    assert control_row(world) == row
    plan = plan_groups(make_grid(Layout.parse({"devices": world})), ("control",), gpu=True)
    groups = {made.axis: made.ranks for made in plan}
    joined = {rank for ranks in groups["control"] for rank in ranks}
    heads = groups.get(HEADS, ((0,),))[0]
    assert joined | set(heads) == set(range(world))
    assert heads == tuple(range(0, world, row))
