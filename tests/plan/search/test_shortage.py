"""The simplest layout within the margin comes first; near counts and batches that are faster are listed."""

from __future__ import annotations

import pytest

from plan.searches import search
from scalewright.api import plan as ask
from scalewright.api import predict
from scalewright.plan.search.scaling import nearby
from scalewright.plan.search.search import Plan
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec

H100 = load_cluster("dgx-h100")


def plan(model: str, margin: float, devices: int = 64, **changes: object) -> Plan:
    arguments = {"devices": devices, "seq_len": 8192, "global_batch": 512, **changes}
    return search(load_model_spec(model), H100, margin=margin, **arguments)  # type: ignore[arg-type]


def techniques(result: Plan) -> int:
    keys = result.best[0].keys
    plain = (keys["schedule"] in ("1f1b", "gpipe"), keys["recompute"] == "none", keys["offload"] == "none")
    return plain.count(False)


def test_the_simplest_within_the_margin_comes_first() -> None:
    fastest, simplest = plan("llama-3.1-8b", 0.0, 128), plan("llama-3.1-8b", 0.02, 128)
    assert fastest.simpler_than() is None
    assert fastest.best[0].score <= simplest.best[0].score <= 1.02 * fastest.best[0].score * (1 + 1e-9)
    assert techniques(simplest) < techniques(fastest)
    other = simplest.simpler_than()
    assert other is not None
    assert other["layout"] == fastest.best[0].keys
    cost = 100 * (simplest.best[0].score / fastest.best[0].score - 1)
    assert other["cost_pct"] == pytest.approx(cost, abs=1e-6)
    with pytest.raises(UserError, match="margin is 7"):
        plan("llama-3.1-8b", 7.0)


def test_an_odd_device_count_has_better_ones_nearby() -> None:
    changes = nearby(plan("llama-3.1-8b", 0.02, devices=100, framework="megatron"))
    by_count = {change["devices"]: change for change in changes}
    assert by_count[96]["gain_pct"] > 20
    assert by_count[100]["global_batch"] == 500
    assert nearby(plan("llama-3.1-8b", 0.02, top=1)) == []


def test_the_clusters_price_is_the_default() -> None:
    cluster = {"like": "dgx-h100", "price_per_device_hour": 2.5}
    answer = ask("llama-3.1-8b", cluster, 8, 4096, 64, tokens=1e9, explain=False, top=1)
    total = answer["best"][0]["total"]
    assert total["cost"] == pytest.approx(2.5 * total["device_hours"])
    dearer = ask("llama-3.1-8b", cluster, 8, 4096, 64, tokens=1e9, price=5.0, explain=False, top=1)
    assert dearer["best"][0]["total"]["cost"] == pytest.approx(2 * total["cost"])
    layout = answer["best"][0]["layout"]
    arguments = {"seq_len": 4096, "tokens": 1e9}
    assert predict("llama-3.1-8b", cluster, layout, **arguments)["total"]["cost"] == total["cost"]
    predicted = predict("llama-3.1-8b", cluster, layout, **arguments, price=5.0)
    assert predicted["total"]["cost"] == pytest.approx(2 * total["cost"])
