"""The placement: boxes tile every tensor, copies are counted, and chunks are cut as torch cuts them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import balance, box, copies, local_shape, pad, place, stage_layers

DENSE = ModelSpec.parse(
    {
        "vocab_size": 101,  # divisible by nothing: padding and uneven chunks show
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "qkv_bias": True,
    }
)
SPARSE = DENSE.replace(moe={"num_experts": 8, "top_k": 2, "moe_intermediate_size": 32, "first_k_dense": 1})
LAYOUTS = [
    {"devices": 1},
    {"devices": 4, "zero_stage": 0},
    {"devices": 4, "zero_stage": 3},
    {"devices": 7},
    {"devices": 8, "tp": 4, "zero_stage": 3},
    {"devices": 16, "tp": 2, "pp": 2, "dp_replicate": 2},
    {"devices": 8, "tp": 2, "cp": 2, "zero_stage": 1},
]


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "moe"])
@pytest.mark.parametrize("keys", LAYOUTS, ids=str)
def test_boxes_tile_every_tensor_as_often_as_copies_say(model: ModelSpec, keys: dict[str, int]) -> None:
    experts = {"ep": 2} if model.moe and keys["devices"] % 2 == 0 else {}
    layout = Layout.parse({**keys, **experts})
    grid = make_grid(layout, model.kv_heads)
    for placement in place(model, layout):
        covered: Counter[tuple[int, ...]] = Counter()
        for rank in range(grid.world // layout.pp):  # one stage's ranks
            offsets, sizes = box(placement, grid.coords(rank), grid.size_of)
            covered.update(itertools.product(*(range(o, o + s) for o, s in zip(offsets[:1], sizes[:1], strict=True))))
            local = local_shape(placement, grid.coords(rank), grid.size_of)
            gaps = pad(placement, grid.coords(rank), grid.size_of)
            assert all(gap >= 0 for gap in gaps)
            assert tuple(s + g for s, g in zip(sizes, gaps, strict=True)) == local
        assert set(covered) == {(row,) for row in range(placement.tensor.shape[0])}
        cells = sum(
            _cells(box(placement, grid.coords(rank), grid.size_of)[1]) for rank in range(grid.world // layout.pp)
        )
        ends = 2 if len(placement.stages) > 1 else 1
        assert cells * ends == placement.tensor.size * copies(placement, grid.size_of)


def _cells(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def test_fsdp_cuts_as_torch_chunk_does() -> None:
    torch = pytest.importorskip("torch")
    layout = Layout.parse({"devices": 7})
    grid = make_grid(layout)
    for placement in place(DENSE, layout):
        rows = placement.tensor.shape[0]
        chunks = [len(c) for c in torch.arange(rows).chunk(7)]
        chunks += [0] * (7 - len(chunks))
        rows_held = [box(placement, grid.coords(rank), grid.size_of)[1][0] for rank in range(7)]
        assert rows_held == chunks


def test_kv_heads_below_tp_are_copied_and_summed() -> None:
    layout = Layout.parse({"devices": 4, "tp": 4})
    grid = make_grid(layout, DENSE.kv_heads)
    key = next(p for p in place(DENSE, layout) if p.tensor.name == "layers.0.attention.k.weight")
    boxes = [box(key, grid.coords(rank), grid.size_of) for rank in range(4)]
    assert boxes[0] == boxes[1] != boxes[2] == boxes[3]
    assert "kv" in key.grad_sum


def test_sequence_parallel_norms_are_summed_over_tp() -> None:
    layout = Layout.parse({"devices": 2, "tp": 2})
    norm = next(p for p in place(DENSE, layout) if p.tensor.name == "norm.weight")
    assert norm.grad_sum == ("tp",)
    assert place(DENSE, Layout.parse({"devices": 2, "tp": 2, "sp": False}))[-1].grad_sum == ()


@pytest.mark.parametrize("sp", [True, False])
def test_norms_of_single_heads_are_summed_over_tp(sp: bool) -> None:
    """Each rank norms its own heads with the shared weight: its gradient is partial, with or without sp."""
    model = DENSE.replace(qk_norm="head")
    layout = Layout.parse({"devices": 2, "tp": 2, "sp": sp})
    placements = {p.tensor.name: p for p in place(model, layout)}
    for name in ("q_norm", "k_norm"):
        placement = placements[f"layers.0.attention.{name}.weight"]
        assert (placement.splits, placement.grad_sum) == ((), ("tp",))
        assert "tp" in placement.copies


def test_a_tied_embedding_lives_on_two_stages() -> None:
    tied = DENSE.replace(tie_word_embeddings=True)
    first = place(tied, Layout.parse({"devices": 2, "pp": 2}))[0]
    assert first.stages == (0, 1)
    assert "tie" in first.grad_sum


def test_stages_are_balanced_by_cost() -> None:
    assert stage_layers(DENSE, Layout.parse({"devices": 2, "pp": 2})) in {(3, 2), (2, 3)}
    assert balance([1.0] * 8 + [3.0], 3) in {(4, 4, 1), (3, 4, 2)}
    assert sorted(balance([1.0] * 79 + [2.22], 16)) == [4, *[5] * 14, 6]  # 6 is needed once, and taken once
    assert sum(stage_layers(DENSE, Layout.parse({"devices": 5, "pp": 5}))) == 5
