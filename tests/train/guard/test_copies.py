"""Numbers that ranks hold alike are compared: a flipped bit is seen, and the rank and tensor named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planted_flips import flip, plant, train_with_a_flip
from runs import MODEL, bits, events, merge, run, run_data
from scalewright.checkpoint.format import committed
from scalewright.spec.errors import RunError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import box, holders, place
from scalewright.train.guard.copies import Odd, bit_sum, first_holders, vote

FOUR = {"devices": 4, "zero_stage": 0, "micro_batch": 1}
TWO = {"devices": 2, "zero_stage": 0, "micro_batch": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "four replicas": FOUR,
    "two replicas of shards": {"devices": 4, "zero_stage": 3, "dp_replicate": 2, "micro_batch": 1},
    "tp 2": {"devices": 4, "zero_stage": 0, "tp": 2, "micro_batch": 1},
    "pp 2": {"devices": 4, "zero_stage": 0, "pp": 2, "micro_batch": 1},
    "tp 4, shared KV heads": {"devices": 4, "zero_stage": 0, "tp": 4, "micro_batch": 1},
    "tp 2, shards": {"devices": 4, "zero_stage": 3, "tp": 2, "micro_batch": 1},
    "islands": {"devices": 4, "zero_stage": 0, "dp_replicate": 2, "micro_batch": 1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("numbers", [1, 8, 13])
def test_no_flipped_bit_leaves_the_sum_as_it_was(dtype, numbers):
    tensor = torch.arange(numbers, dtype=torch.float32).to(dtype)
    usual = int(bit_sum(tensor))
    for number in range(numbers):
        for bit in range(8 * tensor.element_size()):
            flip(tensor, number, bit)
            assert int(bit_sum(tensor)) != usual
            flip(tensor, number, bit)
    assert int(bit_sum(tensor)) == usual


@pytest.mark.parametrize("numbers", [6, 7])
def test_the_sum_is_the_same_wherever_a_copy_lies(numbers):
    row = torch.randn(16)
    parts = [row[start : start + numbers] for start in (0, 1)]
    parts[1].copy_(torch.randn(numbers))
    assert int(bit_sum(parts[1])) == int(bit_sum(parts[1].clone()))
    assert int(bit_sum(parts[1].reshape(-1, 1).expand(-1, 2)[:, 0])) == int(bit_sum(parts[1].clone()))


def test_the_odd_one_of_three_is_named_and_two_are_left_open():
    assert vote("w", "weight", {0: 5, 1: 5, 2: 5}) is None
    assert vote("w", "weight", {0: 5, 1: 9, 2: 5}) == Odd("w", "weight", (1,), 3)
    assert vote("w", "weight", {0: 5, 1: 9, 2: 5, 3: 8}) == Odd("w", "weight", (1, 3), 4)
    two = vote("w", "exp_avg", {2: 5, 3: 9})
    assert two is not None
    assert (two.ranks, two.decided) == ((2, 3), False)
    assert vote("w", "weight", {0: 5, 1: 5, 2: 7, 3: 7}) == Odd("w", "weight", (0, 1, 2, 3), 4)


MANY = [
    {"devices": 8, "tp": 2, "pp": 2, "zero_stage": 1}, {"devices": 8, "dp_replicate": 2, "tp": 2},
    {"devices": 8, "tp": 4, "zero_stage": 0}, {"devices": 8, "cp": 2, "zero_stage": 0},
    {"devices": 8, "pp": 2, "zero_stage": 0, "schedule": "zbv", "virtual_stages": 2},
    {"devices": 16, "ep": 4, "tp": 2, "pp": 2, "zero_stage": 0}, {"devices": 16, "ep": 2, "etp": 2, "tp": 4},
]  # fmt: skip


@pytest.mark.parametrize("keys", MANY, ids=str)
def test_ranks_with_the_same_box_are_joined_and_no_others(keys):
    """Of every tensor, against the boxes themselves."""
    experts = {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 16}} if "ep" in keys else {}
    model = ModelSpec.parse({**MODEL, "tie_word_embeddings": True, "num_hidden_layers": 4, **experts})
    layout = Layout.parse({"micro_batch": 1, **keys})
    grid = make_grid(layout, model.kv_heads)
    coords = [grid.coords(rank) for rank in range(grid.world)]
    for placement in place(model, layout):
        holding = holders(placement, layout)
        first = first_holders(grid, [axis for axis in placement.copies if grid.size_of[axis] > 1])
        by_box: dict[Any, set[int]] = {}
        for rank in range(grid.world):
            part = box(placement, coords[rank], grid.size_of)
            if coords[rank]["pp"] in holding and all(part[1]):
                by_box.setdefault(part, set()).add(rank)
        for ranks in by_box.values():
            assert {rank for rank in range(grid.world) if first[rank] == min(ranks)} == ranks, placement.tensor.name


def judged(planted: dict[str, Any]) -> bool:
    """Whether a flipped tensor that differs is named, and no rank but its own blamed where a majority tells."""
    named = planted["named"]
    if not planted["stays"] and not named:
        return True
    itself = [entry for entry in named if (entry["tensor"], entry["of"]) == (planted["tensor"], planted["of"])]
    blamed = all(planted["rank"] in entry["ranks"] for entry in named)
    majority = all(entry["ranks"] == [planted["rank"]] for entry in named if entry["copies"] > 2)
    return bool(itself) and blamed and majority and all(entry["decided"] == (entry["copies"] > 2) for entry in named)


def test_flips_of_four_replicas_are_named(tmp_path):
    found = plant(tmp_path, FOUR, 12)
    assert len({(f["rank"], f["tensor"], f["of"]) for f in found}) > 6
    assert sum(f["stays"] for f in found) > 8
    assert [f for f in found if not judged(f)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_planted_flip_is_named(tmp_path, name):
    """60 on each layout, of weights and both moments, any bit, looked at after none, one and two more steps."""
    diloco = {"diloco": {"inner_steps": 2}} if name == "islands" else {}
    found = plant(tmp_path, LAYOUTS[name], 60, seed=7, model={"tie_word_embeddings": name == "pp 2"}, **diloco)
    assert sum(f["stays"] for f in found) > 45
    # An outer step carries an island's error on to its peers: a flip before it is seen, and not in its rank alone.
    carried = [f for f in found if name == "islands" and f["steps"]]
    assert [f for f in found if not judged(f) and f not in carried] == []
    assert [f for f in carried if f["stays"] and not any(f["rank"] in entry["ranks"] for entry in f["named"])] == []


def test_a_run_stops_before_it_saves_what_was_spoiled(tmp_path):
    """The error has rank and tensor, the event all of it, and the newest checkpoint is from before."""
    guard = {"corruption": "stop"}
    changes: dict[str, Any] = {"checkpoint": {"every": 2}, "train": {"steps": 8, "guard": guard}}
    with pytest.raises(RunError, match=r"step 4: .*ranks 0, 1, which don't agree on exp_avg_sq of 'layers"):
        train_with_a_flip(tmp_path, TWO, 1, 3, **changes)
    (event,) = events(tmp_path / "out", "corrupt")
    assert (event["step"], event["action"], event["count"]) == (4, "stopped", 2)
    assert {(entry["of"], tuple(entry["ranks"]), entry["decided"]) for entry in event["tensors"]} == {
        ("exp_avg_sq", (0, 1), False), ("weight", (0, 1), False),
    }  # fmt: skip
    assert [path.name for path in committed(tmp_path / "out" / "checkpoints")] == ["step-00000002"]
    adamw = {"name": "adamw", "lr": 1e-2}
    again = run(run_data(tmp_path, layout=TWO, optimizer=adamw, **changes))
    assert (again.resumed_from, again.step) == (2, 8)
    healthy = run({**run_data(tmp_path, layout=TWO, optimizer=adamw, **changes), "out_dir": str(tmp_path / "healthy")})
    assert bits(again.out_dir) == bits(healthy.out_dir)
    (share,) = {event["share"] for event in events(healthy.out_dir, "copies")}
    assert share == 1.0


MIXTURE = {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 16, "router_bias": True}}
ADAMW = {"name": "adamw", "lr": 1e-2}
HEALTHY: dict[str, dict[str, Any]] = {
    "ep 2": {"layout": {"devices": 4, "ep": 2, "dp_replicate": 2, "micro_batch": 1}, "model": MIXTURE},
    "ep 2, zero 0": {"layout": {"devices": 4, "ep": 2, "zero_stage": 0, "micro_batch": 1}, "model": MIXTURE},
    "etp 2": {"layout": {"devices": 4, "tp": 2, "etp": 2, "micro_batch": 1}, "model": MIXTURE},
    "tp 2 without sp": {"layout": {"devices": 4, "tp": 2, "sp": False, "zero_stage": 0, "micro_batch": 1}},
    "zbv, tied": {
        "layout": {"devices": 4, "pp": 2, "schedule": "zbv", "zero_stage": 0, "micro_batch": 1},
        "model": {"tie_word_embeddings": True, "num_hidden_layers": 4},
    },
    "cp 2": {"layout": {"devices": 4, "cp": 2, "zero_stage": 0, "micro_batch": 2}},
    "bf16": {"layout": {**FOUR, "precision": "bf16"}},
    "fp16": {"layout": {**FOUR, "precision": "fp16"}},
    "powersgd": {"layout": FOUR, "train": {"compress": {"powersgd": {"rank": 2}}}},
    "8 bits": {"layout": FOUR, "optimizer": {**ADAMW, "name": "adamw_8bit"}},
    "muon": {"layout": {**FOUR, "tp": 2}, "optimizer": {"name": "muon", "lr": 1e-2}},
    "offload": {"layout": {**FOUR, "offload": "optimizer", "precision": "bf16"}},
    "islands": {
        "layout": {"devices": 4, "dp_replicate": 2, "zero_stage": 1, "micro_batch": 2},
        "diloco": {"inner_steps": 2, "fragments": 2},
    },
    "an own module": {"layout": FOUR, "model": {"python": "parts:build"}, "data": {"python": "parts:Counting"}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_copies_are_alike(tmp_path, name):
    """After every step, on all kinds of layouts, precisions and optimizers."""
    changes = merge({"optimizer": ADAMW, "train": {"steps": 6, "guard": {"check_copies": 1}}}, HEALTHY[name])
    data = run_data(tmp_path, **changes)
    if name == "an own module":
        data["data"] = {"python": "parts:Counting", "seq_len": 16}
    out = run(data).out_dir
    assert events(out, "corrupt") == []
    assert "message" not in events(out, "copies")[0]


def test_shards_alone_have_no_copies_and_it_is_said(tmp_path, capfd):
    data = run_data(tmp_path, layout={"devices": 2, "zero_stage": 3, "micro_batch": 4}, train={"steps": 1})
    run(data)
    (event,) = events(tmp_path / "out", "copies")
    assert event["share"] == 0
    assert "no copies to compare" in event["message"]
