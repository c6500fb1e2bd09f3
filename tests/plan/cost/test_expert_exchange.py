"""Seconds of tokens on their way to experts, under this package's own trainer: what shared experts hide."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

CLUSTER = load_cluster({"like": "dgx-h100", "nodes": 8})
MIXTURE = load_model_spec("qwen3-30b-a3b")
assert MIXTURE.moe is not None
MOE = MIXTURE.moe.dump()


def exposed(shared: int, **layout: Any) -> float:
    """Exposed seconds of the exchange of a model with so many shared experts."""
    keys = {"devices": 16, "ep": 16, "micro_batch": 1, "precision": "bf16", **layout}
    model = MIXTURE.replace(moe={**MOE, "num_shared_experts": shared})
    return predict(model, CLUSTER, Layout.parse(keys), 4096).breakdown["ep_exposed"]


def test_shared_experts_hide_a_part_of_the_exchange() -> None:
    none, two, many = (exposed(shared) for shared in (0, 2, 200))
    assert 0 <= many < two < none
    assert many < 0.5 * none  # all but how much slower both are beside each other


def test_under_a_budget_they_hide_nothing() -> None:
    """They follow the routed experts then (parallel/expert.py)."""
    budget = {"recompute": {"budget": 0.9}}
    assert exposed(2, **budget) == pytest.approx(exposed(0, **budget), rel=1e-9)


def test_an_experts_cut_is_priced_too() -> None:
    """Every rank of etp gets every row: dearer than as many whole experts on as many ranks, inside a node."""
    assert exposed(0, devices=8, ep=4, etp=2) > exposed(0, devices=8, ep=8) > 0
    assert exposed(0, devices=8, ep=1) == 0
