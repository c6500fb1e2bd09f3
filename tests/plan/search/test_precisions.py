"""A plan stays in 16 bits, and says what fewer would gain and risk; recomputed modules are a kind of recomputation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scalewright as sw
from scalewright.plan.predict import predict
from scalewright.plan.request import from_layout
from scalewright.plan.search.axes import make_space
from scalewright.plan.search.objective import make_objective
from scalewright.plan.search.pricer import make_pricer
from scalewright.plan.search.search import capabilities_of
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

MIXTRAL, H100 = load_model_spec("mixtral-8x7b"), load_cluster("dgx-h100")


def planned(cluster: str = "dgx-h100", framework: str | None = "megatron", **keys: Any) -> dict[str, Any]:
    return dict(sw.plan("llama-3.1-8b", cluster, 8, 4096, 32, framework=framework, **keys))


def test_fewer_bits_are_named_with_their_gain_and_risk() -> None:
    answer = planned()
    assert answer["best"][0]["layout"]["precision"] == "bf16"
    rows = {row["precision"]: row for row in answer["precisions"]}
    assert set(rows) == {"fp8", "mxfp8"}  # of a Hopper; no fp4
    assert rows["fp8"]["gain_pct"] > 5
    assert rows["fp8"]["risk"]
    assert "arXiv" in rows["fp8"]["source"]
    best = answer["best"][0]["step_time_s"]["p50"]
    assert rows["fp8"]["gain_pct"] == pytest.approx(100 * (best / rows["fp8"]["step_time_s"] - 1))
    fastest = planned(precision="any", explain=False)
    assert fastest["best"][0]["layout"]["precision"] == max(rows.values(), key=lambda row: row["gain_pct"])["precision"]


@pytest.mark.parametrize(
    ("cluster", "framework"), [("dgx-a100", "megatron"), ("dgx-h100", None), ("dgx-h100", "nanotron")]
)
def test_neither_device_nor_trainer_is_asked_for_what_it_lacks(cluster: str, framework: str | None) -> None:
    assert planned(cluster, framework)["precisions"] == []


def test_modules_are_priced_as_predict_prices_them() -> None:
    request = from_layout(MIXTRAL, H100, Layout(devices=64), 4096, "megatron")
    space = make_space(request, 256, {}, capabilities_of(request))
    kinds = [kind for kind, _, _ in space.recomputes]
    rows = space.spread_recomputes(space.spread_shards(space.spread_pipes(space.bare(np.arange(space.cores)))))
    rows = rows.take(rows.recompute == kinds.index("modules"))
    rows = rows.take(np.random.default_rng(3).choice(len(rows), 20, replace=False))
    priced = make_pricer(space, make_objective("time", request.chip, 64, None), 0.0).price(rows)
    options = {"recompute_modules": "layernorm+moe_act"}
    for i in range(len(rows)):
        layout = Layout.parse({**space.keys(rows, i), "recompute": "selective"})
        prediction = predict(MIXTRAL, H100, layout, 4096, framework="megatron", options=options)
        assert prediction.step_time_s == pytest.approx(priced.seconds[i], rel=1e-9)
        assert prediction.dump()["layout"]["recompute"] == "selective"
    older = from_layout(MIXTRAL, H100, Layout(devices=64), 4096, "megatron", "0.11")
    assert "modules" not in [kind for kind, _, _ in make_space(older, 256, {}, capabilities_of(older)).recomputes]
