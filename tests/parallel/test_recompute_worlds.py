"""Recomputation and offload under every axis: the bits of `none`, and the same collectives on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runs import MODEL
from scalewright.model.init import init_box
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.train.loss import build_loss
from worlds import run_world

SPEC = ModelSpec.parse(MODEL).replace(num_hidden_layers=4)
MICROS = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "every 2": {"recompute": {"every": 2}},
    "budget": {"recompute": {"budget": 0.4}},
    "offload": {"offload": "activations"},
    "offload, full": {"offload": "activations", "recompute": "full"},
    "offload, budget": {"offload": "activations", "recompute": {"budget": 0.4}},
}
SPLIT = {"offload": VARIANTS["offload"]}  # with a backward in two halves nothing is recomputed
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "ddp": ({"devices": 2, "zero_stage": 0}, VARIANTS),
    "zero 3": ({"devices": 2, "zero_stage": 3}, VARIANTS),
    "tp": ({"devices": 2, "tp": 2, "sp": False, "zero_stage": 0}, VARIANTS),
    "tp, sp": ({"devices": 2, "tp": 2, "zero_stage": 0}, VARIANTS),
    "1f1b": ({"devices": 2, "pp": 2, "zero_stage": 0}, VARIANTS),
    "interleaved": ({"devices": 2, "pp": 2, "schedule": "interleaved", "zero_stage": 0}, VARIANTS),
    "zb-h1": ({"devices": 2, "pp": 2, "schedule": "zb-h1", "zero_stage": 0}, SPLIT),
    "zbv": ({"devices": 2, "pp": 2, "schedule": "zbv", "zero_stage": 0}, SPLIT),
    "pp, tp": ({"devices": 4, "pp": 2, "tp": 2, "zero_stage": 0}, VARIANTS),
    "zero 3, tp": ({"devices": 4, "tp": 2, "zero_stage": 3}, VARIANTS),
}


class Collectives(TorchDispatchMode):
    """The names of the collectives, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in ("c10d", "_c10d_functional"):
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def micro_batches() -> list[Micro]:
    random = torch.Generator().manual_seed(7)
    rows = [torch.randint(0, 67, (2, 17), generator=random) for _ in range(MICROS)]
    return [Micro(row[:, :-1], row[:, 1:], {}) for row in rows]


def gradients(mesh: Mesh, layout: Layout) -> tuple[list[Tensor], list[str]]:
    """This rank's report and gradients of a step, and the names of its collectives."""
    with torch.device("meta"):
        model = cut_stages(SPEC, layout, mesh.index("pp"))
    parallel = parallelize(model, place(SPEC, layout), layout, mesh, bf16=False, seq_len=16)
    fill(parallel.weights, lambda t, box: init_box(t, SPEC, 3, *box))
    loss = build_loss("cross_entropy", 0.0, lambda _: None, mesh, 67)  # type: ignore[arg-type,return-value]
    with Collectives() as collectives:
        report = parallel.executor.train(micro_batches(), loss, torch.tensor(100.0))
    return [report, *parallel.weights.take_gradients()], collectives.names


def _compare(mesh: Mesh, layout: Layout, variants: dict[str, dict[str, Any]]) -> dict[str, Any]:
    control, _ = gradients(mesh, layout)
    results: dict[str, Any] = {}
    for name, changes in variants.items():
        actual, names = gradients(mesh, layout.replace(**changes))
        assert len(actual) == len(control) > 1
        results[name] = (all(torch.equal(a, b) for a, b in zip(actual, control, strict=True)), names)
    return results


DEFAULT = ("zero 3", "1f1b", "zb-h1")


@pytest.mark.parametrize("name", [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in LAYOUTS])
def test_the_bits_of_none_under_every_axis(name):
    layout, variants = LAYOUTS[name]
    dp = layout["devices"] // (layout.get("tp", 1) * layout.get("pp", 1))
    layout = {"micro_batch": 2, "global_batch": 2 * MICROS * dp, "precision": "fp32", **layout}
    ranks = run_world(_compare, layout, variants)
    for variant in variants:
        assert [rank[variant][0] for rank in ranks] == [True] * len(ranks), variant
    if layout.get("pp", 1) == 1:
        for rank in ranks[1:]:
            assert {v: names for v, (_, names) in rank.items()} == {v: names for v, (_, names) in ranks[0].items()}
