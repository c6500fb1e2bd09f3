"""Within the margin the simplest layout comes first; near counts and batches that go faster are named."""

from __future__ import annotations

import pytest

from scalewright.api import plan as ask
from scalewright.api import predict
from scalewright.plan.search.counts import nearby
from scalewright.plan.search.search import Plan, search
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec

H100 = load_cluster("dgx-h100")


def plan(model: str, margin: float, devices: int = 64, **changes: object) -> Plan:
    asked = {"devices": devices, "seq_len": 8192, "global_batch": 512, **changes}
    return search(load_model_spec(model), H100, margin=margin, **asked)  # type: ignore[arg-type]


def techniques(found: Plan) -> int:
    keys = found.best[0].keys
    plain = (keys["schedule"] in ("1f1b", "gpipe"), keys["recompute"] == "none", keys["offload"] == "none")
    return plain.count(False)


def test_the_simplest_within_the_margin_comes_first() -> None:
    fastest, simplest = plan("llama-3.1-70b", 0.0), plan("llama-3.1-70b", 0.02)
    assert fastest.simpler_than() is None
    assert fastest.best[0].score <= simplest.best[0].score <= 1.02 * fastest.best[0].score * (1 + 1e-9)
    assert techniques(simplest) < techniques(fastest)
    named = simplest.simpler_than()
    assert named is not None
    assert named["layout"] == fastest.best[0].keys
    assert named["cost_pct"] == pytest.approx(
        100 * (simplest.best[0].score / fastest.best[0].score - 1), abs=1e-6
    )
    with pytest.raises(UserError, match="margin is 7"):
        plan("llama-3.1-70b", 7.0)


def test_odd_counts_are_told_of_better_ones() -> None:
    changes = nearby(plan("llama-3.1-8b", 0.02, devices=100, framework="megatron"))
    by_count = {one.devices: one for one in changes}
    assert by_count[96].gain_pct > 20
    assert by_count[100].global_batch == 500
    assert nearby(plan("llama-3.1-8b", 0.02, top=1)) == []


def test_a_clusters_own_price_counts() -> None:
    cluster = {"like": "dgx-h100", "price_per_device_hour": 2.5}
    found = ask("llama-3.1-8b", cluster, 8, 4096, 64, tokens=1e9, explain=False, top=1)
    total = found["best"][0]["total"]
    assert total["cost"] == pytest.approx(2.5 * total["device_hours"])
    dearer = ask("llama-3.1-8b", cluster, 8, 4096, 64, tokens=1e9, price=5.0, explain=False, top=1)
    assert dearer["best"][0]["total"]["cost"] == pytest.approx(2 * total["cost"])
    (one,) = found["best"]
    said = {"seq_len": 4096, "tokens": 1e9}
    assert predict("llama-3.1-8b", cluster, one["layout"], **said)["total"]["cost"] == total["cost"]
    again = predict("llama-3.1-8b", cluster, one["layout"], **said, price=5.0)
    assert again["total"]["cost"] == pytest.approx(2 * total["cost"])
