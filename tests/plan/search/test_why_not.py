"""A layout that wasn't chosen says what it costs, what it lacks, or which rule forbids it."""

from __future__ import annotations

import pytest

from scalewright.plan.predict import predict
from scalewright.plan.search.search import Plan, search
from scalewright.plan.search.why_not import why_not
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

LLAMA, H100 = load_model_spec("llama-3.1-70b"), load_cluster("dgx-h100")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return search(LLAMA, H100, devices=128, seq_len=8192, global_batch=256)


def test_near_losers_differ_on_their_axis_and_their_costs_add_up(plan: Plan) -> None:
    best = plan.best[0].prediction
    mine = plan.best[0].keys
    assert {"tp", "pp", "micro_batch"} <= {
        axis for entry in plan.why_not for axis in entry["axis"].split(", ")
    }
    for entry in plan.why_not:
        assert all(entry["layout"][axis] != mine[axis] for axis in entry["axis"].split(", "))
        difference = entry["step_time_s"] - best.step_time_s
        assert sum(entry["costs_s"].values()) == pytest.approx(difference, abs=1e-9 * best.step_time_s)
        assert (entry["slower_pct"] >= -1e-9) == entry["fits"], "what is faster than the best doesn't fit"
        assert "\n" not in entry["why"]
        assert ("does not fit" in entry["why"]) == (not entry["fits"])


def test_a_near_loser_is_what_predict_says_of_its_layout(plan: Plan) -> None:
    for entry in plan.why_not[:4]:
        keys = {key: value for key, value in entry["layout"].items() if key != "dp"}
        again = predict(LLAMA, H100, Layout.parse(keys), 8192)
        assert again.step_time_s == pytest.approx(entry["step_time_s"], rel=1e-9)


def test_an_asked_for_layout_that_is_slower(plan: Plan) -> None:
    found = why_not(plan, {"tp": 8, "pp": 8})
    assert found["verdict"] == "slower"
    assert (found["layout"]["tp"], found["layout"]["pp"]) == (8, 8)
    assert found["why"].startswith("tp 8, pp 8 (with schedule 1f1b, ")
    plain = {"tp": 8, "pp": 8, "schedule": "1f1b"}
    fixed = search(LLAMA, H100, devices=128, seq_len=8192, global_batch=256, fixed=plain)
    assert found["step_time_s"] == pytest.approx(fixed.best[0].prediction.step_time_s, rel=1e-12)


def test_a_pipeline_without_a_schedule_is_the_plain_one(plan: Plan) -> None:
    """Chunks make it interleaved; a trainer without 1F1B has its own first one."""
    chunks = why_not(plan, {"tp": 4, "pp": 4, "virtual_stages": 5})
    assert chunks["layout"]["schedule"] == "interleaved"
    named = why_not(plan, {"tp": 4, "pp": 4, "schedule": "zb-h1"})
    assert named["layout"]["schedule"] == "zb-h1"
    assert why_not(plan, {"tp": 8})["layout"]["tp"] == 8  # the best of all pipelines
    asked = {"devices": 16, "seq_len": 2048, "global_batch": 32, "framework": "maxtext", "explain": False}
    small = search(load_model_spec("llama-3.2-1b"), H100, **asked)  # type: ignore[arg-type]
    assert why_not(small, {"pp": 2})["layout"]["schedule"] == "gpipe"


def test_what_nobody_asked_about_is_named_where_it_differs(plan: Plan) -> None:
    best, found = plan.best[0].keys, why_not(plan, {"tp": 8, "pp": 1})
    named = found["why"].split("(with ")[1].split(")")[0]
    for key in ("micro_batch", "recompute", "offload", "zero_stage"):
        assert (f"{key} " in named) == (found["layout"][key] != best[key]), key


def test_the_best_itself(plan: Plan) -> None:
    best = plan.best[0].layout
    asked = {"tp": best.tp, "pp": best.pp, "schedule": best.schedule}
    found = why_not(plan, asked)
    assert found["verdict"] == "best"
    assert found["why"].endswith(": this is the best")


def test_one_that_was_left_out_and_is_better_says_by_how_much() -> None:
    asked = {"devices": 128, "seq_len": 8192, "global_batch": 256, "explain": False, "fixed": {"tp": 8}}
    narrow = search(LLAMA, H100, **asked)  # type: ignore[arg-type]
    found = why_not(narrow, {"tp": 2})
    assert found["verdict"] == "best"
    assert "% better (" in found["why"]


def test_one_that_does_not_fit_says_what_it_lacks_and_what_would_mend_it(plan: Plan) -> None:
    asked = {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 1, "offload": "none", "recompute": "none"}
    found = why_not(plan, asked)
    assert found["verdict"] == "does not fit"
    assert found["lacks_gib"] > 0
    usable = plan.best[0].prediction.number("usable")
    assert f"{found['lacks_gib'] + usable:.1f} GiB of the {usable:.1f} there are" in found["why"]
    assert found["smallest_fix"]


def test_one_that_is_not_legal_names_the_rule_and_what_keeping_it_costs(plan: Plan) -> None:
    found = why_not(plan, {"tp": 3, "pp": 4})
    assert found["verdict"] == "not legal"
    assert found["rule"] == "tp 3 does not divide devices 128"
    assert found["mend"].startswith("tp ")
    assert found["slower_pct"] >= 0
    deep = why_not(plan, {"pp": 128})
    assert deep["rule"] == "pp 128 is more than the model's 80 layers"
    with pytest.raises(UserError, match="unknown axis"):
        why_not(plan, {"tensor": 4})
