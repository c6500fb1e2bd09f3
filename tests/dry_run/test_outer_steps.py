"""What joins islands, counted three times: by the spec's formula, in real outer steps, and by the dry run."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

from runs import MODEL, run_data
from scalewright.dry_run.dry_run import dry_run
from scalewright.dry_run.watch import Watch
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.offload_states import is_host
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.plan.predict import price
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import ISLANDS, USED
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import holders, local_shape, place
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.spec.volumes import outer_steps
from scalewright.train.diloco import Islands
from worlds import CPU, run_world

CASES = [
    ({"devices": 4, "dp_replicate": 2, "zero_stage": 3}, {"inner_steps": 4}),
    ({"devices": 4, "dp_replicate": 2, "tp": 2}, {"inner_steps": 6, "fragments": 3, "outer_dtype": "int8"}),
    ({"devices": 4, "dp_replicate": 2, "pp": 2, "global_batch": 4}, {"outer_dtype": "bf16", "fragments": 2}),
    ({"devices": 2, "dp_replicate": 2}, {"inner_steps": 4, "outer_momentum": 0.0, "overlap": 2}),
]


def expected(model: ModelSpec, layout: Layout, diloco: DilocoSpec, rank: int) -> dict[str, list[float]]:
    """{kind: [calls, bytes]} of all fragments' outer steps, from the placements of a rank's tensors."""
    grid = make_grid(layout, model.kv_heads, islands=True)
    coords = grid.coords(rank)
    held = [p for p in place(model, layout) if coords["pp"] in holders(p, layout)]
    numbers = [0] * diloco.fragments
    for placement in held:
        fragment = (placement.tensor.layer + 1) % diloco.fragments
        numbers[fragment] += prod(local_shape(placement, coords, grid.size_of))
    kinds: dict[str, list[float]] = {}
    for count in numbers:
        steps = outer_steps(count, layout.dp_replicate, diloco.inner_steps, diloco.wire_bytes, diloco.narrow)
        for transfer in steps:
            of_kind = kinds.setdefault(transfer.kind, [0, 0])
            of_kind[0] += round(transfer.calls * diloco.inner_steps)
            of_kind[1] += round(transfer.total * diloco.inner_steps)
    return {kind: counted for kind, counted in kinds.items() if counted[0]}


def outer_step(mesh: Mesh, layout: Layout, keys: dict[str, Any]) -> dict[str, Any]:
    """Traffic over dp_replicate of all fragments' outer steps, and bytes of what is kept between them."""
    model, diloco = ModelSpec.parse(MODEL), DilocoSpec.parse(keys)
    grid = make_grid(layout, model.kv_heads, islands=True)
    mesh = make_mesh(grid, mesh.rank, CPU, axes=(*USED, *ISLANDS), share=False)
    with torch.device("meta"):
        stages = cut_stages(model, layout, mesh.index("pp"))
    parallel = parallelize(stages, place(model, layout), layout, mesh, bf16=False, seq_len=16)
    fill(parallel.weights, lambda tensor, box: torch.full(box[1], 1.0 + mesh.index("dp_replicate")))
    islands = Islands(diloco, parallel.weights, mesh)
    islands.begin()
    islands.last = 1
    with Watch(mesh, is_host) as watch:
        islands.after_step()
    sent = {c.kind: [c.count, c.bytes] for c in watch.collectives if c.axis == "dp_replicate"}
    numbers = sum(weight.master.numel() for weight in parallel.weights)
    kept = sum(state.nbytes for state in islands.tensors())
    return {"sent": sent, "kept": kept, "formula": numbers * diloco.outer_bytes, "step": islands.step_bytes}


@pytest.mark.parametrize(("keys", "diloco"), CASES, ids=["zero3", "tp2-int8", "pp2-bf16", "overlap"])
def test_formula_real_steps_and_dry_run_agree(tmp_path, keys, diloco):
    spec, layout, model = DilocoSpec.parse(diloco), Layout.parse(keys), ModelSpec.parse(MODEL)
    seen = run_world(outer_step, keys, diloco)
    for rank, real in enumerate(seen):
        counted = expected(model, layout, spec, rank)
        assert real["sent"] == counted
        assert real["kept"] == real["formula"]
        assert real["step"] == pytest.approx(sum(size for _, size in counted.values()) / spec.inner_steps)
    data = run_data(tmp_path, layout={**keys, "precision": "fp32"}, diloco=diloco, optimizer={"name": "sgd"})
    rehearsed = dry_run({**data, "layout": {**data["layout"], "global_batch": layout.global_batch}})
    for group in rehearsed.dump()["groups"]:
        for rank in group["ranks"]:
            outer = {c["kind"]: [c["count"], c["bytes"]] for c in group["outer_collectives"]}
            assert outer == expected(model, layout, spec, rank)
            assert group["memory_bytes"]["optimizer"] == seen[rank]["kept"]
        inner = {(c["axis"], c["kind"]) for c in group["collectives"]}
        assert not any(axis == "dp_replicate" for axis, _ in inner)


@pytest.mark.parametrize("diloco", [{"inner_steps": 10}, {"inner_steps": 10, "outer_dtype": "int8"}])
def test_a_prediction_counts_what_the_dry_run_counts(tmp_path, diloco):
    """States to the byte; traffic but for the blocks that a fragment's end is padded to."""
    layout = {"devices": 4, "dp_replicate": 2, "zero_stage": 3, "global_batch": 4, "precision": "fp32"}
    data = run_data(tmp_path, layout=layout, diloco=diloco)
    run = RunSpec.parse(data)
    rehearsed = dry_run(run)
    fullest = max(rehearsed.groups, key=lambda group: group.step.most["optimizer"])
    place = load_cluster("dgx-h100")
    with_islands = price(Question(run, place))
    held = with_islands.memory_gib["optimizer"] * 2**30
    assert held == pytest.approx(fullest.step.most["optimizer"], rel=1e-3)
    inner = sum(s for (axis, _, _), (_, s) in fullest.step.traffic.items() if axis == "dp_shard")
    outer = sum(size for _, size in fullest.step.outer.values())
    assert with_islands.comm_bytes["dp"] == pytest.approx(inner + outer / 10, rel=0.02)
    plain = price(Question(run.model_copy(update={"diloco": None}), place))
    assert with_islands.comm_bytes["dp"] < plain.comm_bytes["dp"]
