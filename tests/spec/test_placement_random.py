"""Placements of random layouts: every element is held by as many ranks as `copies` says; one copy tiles."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.grid import Grid, make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, box, copies, holders, place, stage_layers
from scalewright.spec.schedule import KINDS, stage_ranks

DENSE = ModelSpec.parse(
    {
        "vocab_size": 37,  # divisible by nothing: padding and uneven chunks show
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 9,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "qkv_bias": True,
        "qk_norm": "full",
    }
)
MODELS = {
    "plain": DENSE,
    "tied": DENSE.replace(tie_word_embeddings=True),
    "moe": DENSE.replace(
        mlp_bias=True, moe={"num_experts": 4, "top_k": 2, "moe_intermediate_size": 8, "first_k_dense": 1}
    ),
}


def _random_layout(dice: random.Random, model: ModelSpec) -> Layout | None:
    """A layout of up to 48 ranks that this model can have; None for an invalid one."""
    tp, cp, pp = dice.choice([1, 2, 4]), dice.choice([1, 2]), dice.choice([1, 2, 3, 4])
    replicate, shard = dice.choice([1, 2]), dice.choice([1, 2, 3])
    keys: dict[str, Any] = {"devices": tp * cp * pp * replicate * shard, "tp": tp, "cp": cp, "pp": pp}
    keys |= {"dp_replicate": replicate, "zero_stage": dice.choice([0, 1, 2, 3])}
    if pp > 1:
        keys["schedule"] = dice.choice(list(KINDS))
        keys["global_batch"] = 2 * pp * replicate * shard
        if KINDS[keys["schedule"]].chunked:
            keys["virtual_stages"] = 2
    if model.moe:
        keys["ep"], keys["etp"] = dice.choice([1, 2, 4]), dice.choice([1, 2])
    try:
        layout = Layout.parse(keys)
        check_layout(layout, model, 48)
    except UserError:
        return None
    return layout


@cache
def _layouts(name: str) -> tuple[Layout, ...]:
    dice = random.Random(f"placements of {name}")
    layouts: list[Layout] = []
    while len(layouts) < 24:
        if layout := _random_layout(dice, MODELS[name]):
            layouts.append(layout)
    return tuple(layouts)


@pytest.mark.parametrize("name", MODELS)
def test_every_element_is_held_by_as_many_ranks_as_copies_say(name: str) -> None:
    kinds = set()
    for layout in _layouts(name):
        kinds.add(layout.schedule)
        grid = make_grid(layout, MODELS[name].kv_heads)
        coords = [grid.coords(rank) for rank in range(grid.world)]
        for placement in place(MODELS[name], layout):
            held = _times_held(placement, layout, grid, coords)
            assert held.min() == held.max() == copies(placement, grid.size_of), (layout, placement)
    assert len(kinds) >= 6  # the dice met most schedules


@pytest.mark.parametrize("name", MODELS)
def test_boxes_of_one_copy_tile_the_tensor(name: str) -> None:
    for layout in _layouts(name):
        grid = make_grid(layout, MODELS[name].kv_heads)
        coords = [grid.coords(rank) for rank in range(grid.world)]
        for placement in place(MODELS[name], layout):
            first = [c for c in coords if all(c[axis] == 0 for axis in placement.copies if axis != "tie")]
            copy = [c for c in first if c["pp"] == holders(placement, layout)[0]]
            assert np.all(_times_held(placement, layout, grid, copy) == 1), (layout, placement)


def _times_held(
    placement: Placement, layout: Layout, grid: Grid, coords: list[dict[str, int]]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many of these ranks hold each element."""
    held = np.zeros(placement.tensor.shape, dtype=np.int64)
    for rank_coords in coords:
        if rank_coords["pp"] in holders(placement, layout):
            offsets, sizes = box(placement, rank_coords, grid.size_of)
            held[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] += 1
    return held


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_where_the_schedule_runs_its_stage(kind: str) -> None:
    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": kind, "global_batch": 8})
    rank_of = stage_ranks(kind, 4, layout.virtual_stages)
    sizes = stage_layers(DENSE, layout)
    assert len(sizes) == layout.stages
    assert sum(sizes) == DENSE.num_hidden_layers
    stage_of = [stage for stage, count in enumerate(sizes) for _ in range(count)]
    for placement in place(DENSE, layout):
        if 0 <= placement.tensor.layer < DENSE.num_hidden_layers:
            stage = stage_of[placement.tensor.layer]
            ranks = {rank_of[stage]}
            if kind == "dualpipe":  # the same part, once for each way
                ranks.add(rank_of[layout.stages + stage])
            assert placement.stages == (stage,)
            assert holders(placement, layout) == tuple(sorted(ranks))


@pytest.mark.parametrize("kind", KINDS)
def test_both_ends_of_a_tied_head_are_one_copy_in_a_v(kind: str) -> None:
    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": kind, "global_batch": 8})
    tied = place(MODELS["tied"], layout)[0]
    assert tied.stages == (0, layout.stages - 1)
    folded = kind in ("zbv", "dualpipev")
    assert holders(tied, layout) == ((0,) if folded else (0, 3))
    assert ("tie" in tied.grad_sum) == (kind not in ("zbv", "dualpipev", "dualpipe"))
    assert copies(tied, make_grid(layout).size_of) == (1 if folded else 2)
