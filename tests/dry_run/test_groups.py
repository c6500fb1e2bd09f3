"""Groups are made for the axes that a run communicates over, no fewer and no more: asked of the trainer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runs import MODEL

from scalewright.dry_run.dry_run import dry_run
from scalewright.parallel.mesh import Mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import used_axes
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

EXPERTS = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 16}
TIED = {"tie_word_embeddings": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicas": ({"devices": 4, "zero_stage": 0}, {}),
    "zero 3": ({"devices": 4, "zero_stage": 3}, {}),
    "HSDP": ({"devices": 4, "dp_replicate": 2, "zero_stage": 2}, {}),
    "copies of KV heads, sp": ({"devices": 8, "tp": 4, "zero_stage": 1}, {}),
    "a tied pipeline": ({"devices": 8, "pp": 2, "tp": 2, "zero_stage": 0, "global_batch": 8}, TIED),
    "a ring": ({"devices": 4, "cp": 2, "zero_stage": 1}, {}),
    "experts": ({"devices": 4, "ep": 2, "zero_stage": 3}, {"moe": EXPERTS}),
    "experts cut twice, replicas": ({"devices": 8, "tp": 2, "ep": 2, "etp": 2, "zero_stage": 0}, {"moe": EXPERTS}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axes_of_a_run_are_used(name, monkeypatch):
    keys, changes = CASES[name]
    asked: set[str] = set()
    group = Mesh.group

    def noted(mesh: Mesh, axis: str, *rest: Any) -> Any:
        asked.add(axis)
        return group(mesh, axis, *rest)

    monkeypatch.setattr(Mesh, "group", noted)
    model = {**MODEL, **changes}
    data = {"train": "nowhere", "seq_len": 16, "document_mask": False}
    dry_run({"model": model, "layout": {"precision": "fp32", **keys}, "data": data})
    layout, spec = Layout.parse(keys), ModelSpec.parse(model)
    sizes = make_grid(layout, spec.kv_heads).size_of
    # control carries the host's words, of which a dry run has none
    used = {axis for axis in used_axes(layout, spec) if sizes[axis] > 1} - {"control"}
    assert used == {axis for axis in asked if sizes.get(axis, 1) > 1}
