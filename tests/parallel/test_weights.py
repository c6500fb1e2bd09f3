"""Partial gradients: each is summed over just the axes that its placement names, whatever its size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runs import MODEL
from scalewright.dry_run.watch import Watch
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.parallel.weights import sum_partial
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.volumes import SUMMED_ALONE
from worlds import CPU, run_world

SPEC = ModelSpec.parse({**MODEL, "tie_word_embeddings": True, "num_key_value_heads": 2, "qkv_bias": True})


def sums_on_rank(mesh: Mesh, layout: Layout, large: int) -> dict[str, Any]:
    """Every gradient is 10^rank before; its values after, and the axes of its placement."""
    mesh = make_mesh(make_grid(layout, SPEC.kv_heads), mesh.rank, CPU, share=False)
    with torch.device("meta"):
        model = cut_stages(SPEC, layout, mesh.index("pp"))
    weights = parallelize(model, place(SPEC, layout), layout, mesh, bf16=False).weights
    gradients = [torch.full_like(w.master, 10.0**mesh.rank) for w in weights]
    with Watch(mesh) as watch:
        sum_partial(weights, gradients, mesh, large=large)
    groups = {
        axis: next((list(g) for g in mesh.grid.groups(axis) if mesh.rank in g), [mesh.rank])
        for axis in ("tp", "kv", "tie")
    }
    return {
        "values": {w.name: sorted(set(g.flatten().tolist())) for w, g in zip(weights, gradients, strict=True)},
        "axes": {w.name: list(w.placement.grad_sum) for w in weights},
        "bytes": {w.name: w.master.numel() * 4 for w in weights},
        "groups": groups,
        "sent": [[c.axis, c.count, c.bytes] for c in watch.collectives],
    }


@pytest.mark.parametrize("large", [SUMMED_ALONE, 1], ids=["together", "apart"])
@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        ({"devices": 2, "tp": 2, "zero_stage": 0}, {"tp"}),
        ({"devices": 4, "tp": 4, "zero_stage": 0}, {"tp", "kv"}),
        ({"devices": 4, "tp": 2, "zero_stage": 3}, {"tp"}),
        ({"devices": 2, "pp": 2, "zero_stage": 0, "global_batch": 2}, {"tie"}),
        ({"devices": 4, "tp": 2, "pp": 2, "zero_stage": 0, "global_batch": 2}, {"tp", "tie"}),
    ],
    ids=["tp", "kv", "tp-zero3", "tie", "tp-tie"],
)
def test_each_over_its_axes(layout, axes, large):
    ranks = run_world(sums_on_rank, layout, large)
    seen = set()
    for rank, result in enumerate(ranks):
        sizes: dict[str, int] = {}
        for name, values in result["values"].items():
            reached = [rank]
            for axis in result["axes"][name]:
                reached = sorted({other for near in reached for other in ranks[near]["groups"][axis]})
                seen.add(axis)
                sizes[axis] = sizes.get(axis, 0) + result["bytes"][name]
            assert values in ([], [float(sum(10**other for other in reached))]), name
        assert {axis: size for axis, _, size in result["sent"]} == {a: s for a, s in sizes.items() if s}
        if large == SUMMED_ALONE:
            assert all(calls == 1 for _, calls, _ in result["sent"])
    assert seen == axes
