"""Explanations of a prediction: what_if, the smallest fix, the evidence."""

from __future__ import annotations

from scalewright.plan.explain import evidence, extrapolates, smallest_fix, what_if
from scalewright.plan.predict import Prediction, predict, together
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.step_parts import RISK_TERMS


def run(devices: int = 64, cluster: str = "dgx-h100", **changes: object) -> Prediction:
    layout = Layout.parse({"devices": devices, "zero_stage": 1, "global_batch": 2 * devices, **changes})
    return predict(load_model_spec("llama-3.1-8b"), load_cluster(cluster), layout, 4096, framework="megatron")


def ours(**keys: object) -> Prediction:
    layout = Layout.parse({"global_batch": 64, **keys})
    return predict(load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100"), layout, 4096)


def test_what_if_is_sorted_and_hardware_never_hurts() -> None:
    rows = together([what_if(run(tp=2, micro_batch=4, global_batch=512))])[0]
    gains = [row["gain_pct"] for row in rows]
    assert gains == sorted(gains, reverse=True)
    assert {row["change"] for row in rows if row["kind"] == "hardware"} == {
        "peak x2", "memory bandwidth x2", "links inside the domain x2", "network between nodes x2",
    }  # fmt: skip
    assert "tp / 2" in {row["change"].split(",")[0] for row in rows if row["kind"] == "setting"}
    by_name = {row["change"].split(",")[0]: row["gain_pct"] for row in rows}
    assert by_name["peak x2"] > 10
    for name in ("memory bandwidth x2", "links inside the domain x2", "network between nodes x2"):
        assert by_name[name] >= 0
    assert by_name["tp / 2"] > 0  # less communication


def test_what_if_tries_other_zero_stages_recomputation_and_schedules() -> None:
    """Lower ZeRO stages are among the changes: ZeRO 3 is expensive under a pipeline."""
    rows = {row["change"].split(",")[0]: row for row in together([what_if(ours(devices=8, pp=2, zero_stage=3))])[0]}
    expected = {"zero_stage 1", "zero_stage 2", "recompute selective", "recompute full"}
    expected |= {f"schedule {kind}" for kind in ("interleaved", "zb-h1", "zb-interleaved", "zbv")}
    assert expected <= set(rows)
    assert {rows[change]["kind"] for change in expected} == {"setting"}
    assert "zero_stage 3" not in rows
    assert rows["zero_stage 1"]["gain_pct"] > 0 > rows["recompute full"]["gain_pct"]
    alone = {row["change"].split(" ")[0] for row in together([what_if(ours(devices=1, zero_stage=0))])[0]}
    assert not {"zero_stage", "schedule"} & alone


def test_a_change_that_may_not_fit_is_listed_as_its_own_prediction_puts_it() -> None:
    """A plan takes what fits up to the p90 of its memory: a faster row beside it says why it wasn't taken."""
    rows = {
        row["change"].split(",")[0]: row["change"]
        for row in together([what_if(ours(devices=16, micro_batch=2, zero_stage=3))])[0]
    }
    risks = {stage: ours(devices=16, micro_batch=2, zero_stage=stage).risk for stage in (0, 1, 2)}
    assert {"likely", "no"} <= set(risks.values())
    for stage, risk in risks.items():
        assert rows[f"zero_stage {stage}"] == f"zero_stage {stage}, {RISK_TERMS[risk]}"
    assert rows["recompute full"] == "recompute full"


def test_a_layout_that_does_not_fit_gets_the_cheapest_fix() -> None:
    prediction = run(micro_batch=8, global_batch=512)
    assert not prediction.fits
    (fix,) = together([smallest_fix(prediction)])
    assert fix is not None
    assert fix["fits"]
    assert together([smallest_fix(run(zero_stage=3, recompute="full"))]) == [None]


def test_evidence_names_runs_that_are_alike() -> None:
    nearest = together([evidence(run())])[0]["nearest"]
    assert len(nearest) == 3
    assert all(near["device"] == "h100-sxm" for near in nearest)
    assert all(0.4 < near["predicted"] / near["measured"] < 2.5 for near in nearest)


def test_extrapolation_is_named() -> None:
    outside = " | ".join(extrapolates(run(devices=8, cluster="mi300x").request))
    assert "amd" in outside
    assert extrapolates(run().request) == []


def test_changes_keep_to_the_layouts_rules() -> None:
    """A split backward allows no recomputation, 25 heads no tp of 2; neither is listed."""
    split = run(devices=8, pp=2, schedule="zb-h1", micro_batch=8, global_batch=64)
    assert not split.fits
    (fix,) = together([smallest_fix(split)])
    assert fix is not None
    assert "recompute" not in fix["change"]
    layout = Layout.parse({"devices": 8, "global_batch": 8})
    odd = predict(load_model_spec("gpt2-1.5b"), load_cluster("dgx-h100"), layout, 1024)
    assert not any(row["change"].startswith("tp") for row in together([what_if(odd)])[0])
    short = predict(load_model_spec("tiny"), load_cluster("dgx-h100"), layout, 1)
    assert not any(row["change"].startswith("cp") for row in together([what_if(short)])[0])


def test_experts_are_an_axis_too() -> None:
    layout = Layout.parse({"devices": 8, "ep": 4, "global_batch": 8})
    rows = together([what_if(predict(load_model_spec("mixtral-8x7b"), load_cluster("dgx-h100"), layout, 2048))])[0]
    assert {"ep x2", "ep / 2"} <= {row["change"].split(",")[0] for row in rows}
