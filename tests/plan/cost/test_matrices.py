"""Muon's products and the way to owners in a predicted step, against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.optimizers import ADAMW, OPTIMIZERS, product_flops
from scalewright.spec.presets import load_model_spec

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
MUON = OPTIMIZERS["muon"]


def update(keys: dict[str, Any], optimizer: Any = MUON) -> float:
    layout = Layout.parse({"precision": "bf16", "global_batch": 64, **keys})
    return predict(LLAMA, H100, layout, 4096, optimizer=optimizer).breakdown["optimizer"]


def test_flops_of_a_matrix_are_those_of_its_products() -> None:
    """[2, 3]: x x^T and the last product 2 x 2 x 2 x 3 each, the square's own 2 x 2 x 2 x 2; five times."""
    assert product_flops((2, 3)) == product_flops((3, 2)) == 5 * (24 + 16 + 24)
    assert product_flops((7, 2, 3)) == 7 * product_flops((2, 3))


def test_each_matrix_is_computed_once_by_the_ranks_that_share_it() -> None:
    """8B: 6.7e14 FLOPs in all, by 500 to 900 TFLOP/s. More shards have less each, replicas all of it."""
    eight, sixteen, tp, replicas = (
        update(keys) - update(keys, ADAMW)
        for keys in (
            {"devices": 8, "zero_stage": 3},
            {"devices": 16, "zero_stage": 3},
            {"devices": 8, "tp": 8},
            {"devices": 16, "zero_stage": 3, "dp_replicate": 2},
        )
    )
    assert 6.7e14 / 8 / 900e12 < eight < 6.7e14 / 8 / 500e12 + 0.05
    assert eight > 1.6 * sixteen
    assert tp == pytest.approx(eight, rel=0.5)  # at the pace of its blocks, which is another
    assert replicas == pytest.approx(eight, rel=0.1)


def test_a_rank_has_at_least_the_largest_matrix() -> None:
    """On 1,024 shards most ranks have no matrix, and one has a gate of 4,096 x 14,336: 5.5e12 FLOPs."""
    keys = {"devices": 1024, "zero_stage": 3, "global_batch": 1024}
    assert update(keys) > product_flops((4096, 14336)) / 900e12
