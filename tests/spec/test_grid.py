"""The grid: groups along every axis contain each rank once, and agree with the coordinates.

Which tokens a rank of context parallelism has.
"""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.spec.grid import AXES, make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.zigzag import SequenceCut, chunks

LAYOUTS = [
    {"devices": 1},
    {"devices": 8, "tp": 2, "pp": 2},
    {"devices": 16, "tp": 2, "cp": 2, "dp_replicate": 2, "ep": 4},
    {"devices": 12, "tp": 3, "pp": 2, "dp_replicate": 2},
]


@pytest.mark.parametrize("keys", LAYOUTS)
def test_groups_hold_every_rank_once_and_match_coordinates(keys: dict[str, int]) -> None:
    grid = make_grid(Layout.parse(keys))
    for axis in AXES:
        groups = grid.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(grid.world))
        for group in groups:
            assert len(group) == grid.size_of[axis]
            assert [grid.coords(rank)[axis] for rank in group] == list(range(len(group)))


def test_order_is_outermost_first() -> None:
    grid = make_grid(Layout.parse({"devices": 8, "tp": 2, "pp": 2}))
    assert grid.groups("tp")[0] == (0, 1)
    assert grid.groups("fsdp")[0] == (0, 2)
    assert grid.groups("pp")[0] == (0, 4)


def test_kv_and_tie_groups() -> None:
    grid = make_grid(Layout.parse({"devices": 8, "tp": 4, "pp": 2}), kv_heads=2)
    assert grid.groups("kv") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert grid.groups("tie") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [grid.coords(rank)["kv"] for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", ["zbv", "dualpipev"])
def test_a_v_schedule_has_no_tie_groups(kind: str) -> None:
    grid = make_grid(Layout.parse({"devices": 4, "pp": 2, "schedule": kind, "global_batch": 16}))
    assert grid.size_of["tie"] == 1
    assert grid.groups("tie") == ((0,), (1,), (2,), (3,))
    assert {grid.coords(rank)["tie"] for rank in range(4)} == {0}


def test_the_two_ways_of_dualpipe_mirror_each_other() -> None:
    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": "dualpipe", "global_batch": 8})
    grid = make_grid(layout)
    assert layout.stages == 4
    assert grid.groups("mirror") == ((0, 3), (1, 2))
    assert [grid.coords(rank)["mirror"] for rank in range(4)] == [0, 0, 1, 1]
    assert make_grid(Layout.parse({"devices": 4, "pp": 4})).groups("mirror") == ((0,), (1,), (2,), (3,))


def test_islands_sum_by_themselves() -> None:
    """Two islands of dp_shard 2 x tp 2: gradients, losses and a step's report stay within one."""
    layout = Layout.parse({"devices": 8, "tp": 2, "dp_replicate": 2})
    grid, plain = make_grid(layout, islands=True), make_grid(layout)
    for axis in AXES:
        groups = grid.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(8))
        for group in groups:
            assert [grid.coords(rank)[axis] for rank in group] == list(range(grid.size_of[axis]))
    assert grid.groups("loss") == grid.groups("gradient") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert grid.groups("island") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert grid.groups("islands") == grid.groups("dp_replicate") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert grid.groups("batch") == plain.groups("batch")
    assert (grid.copying["dp_replicate"], plain.copying["dp_replicate"]) == (1, 2)
    assert plain.groups("island") == plain.groups("world")


@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_have_every_token_once(kind: str, ranks: int) -> None:
    length = 5 * chunks(kind, ranks)
    parts = [SequenceCut(kind, ranks, rank).tokens(length) for rank in range(ranks)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert {len(part) for part in parts} == {length // ranks}


def test_a_rings_ranks_have_the_same_work_and_ulysses_have_not() -> None:
    """Under the causal mask token i sees i + 1 keys."""
    work = {
        kind: [int((SequenceCut(kind, 4, rank).tokens(64) + 1).sum()) for rank in range(4)]
        for kind in ("ring", "ulysses")
    }
    assert len(set(work["ring"])) == 1
    assert work["ulysses"][3] > 6 * work["ulysses"][0]


def test_another_ranks() -> None:
    cut = SequenceCut("ring", 2, 0)
    assert cut.tokens(8).tolist() == [0, 1, 6, 7]
    assert cut.tokens(8, 1).tolist() == [2, 3, 4, 5]
