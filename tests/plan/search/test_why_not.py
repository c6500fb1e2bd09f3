"""Why a layout wasn't chosen: its cost, the memory it lacks, or the rule that forbids it."""

from __future__ import annotations

import pytest

import scalewright as sw
from plan.searches import search
from scalewright.plan.predict import predict
from scalewright.plan.search.search import Plan
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
    keys = plan.best[0].keys
    assert {"tp", "pp", "micro_batch"} <= {axis for entry in plan.why_not for axis in entry["axis"].split(", ")}
    for entry in plan.why_not:
        assert all(entry["layout"][axis] != keys[axis] for axis in entry["axis"].split(", "))
        difference = entry["step_time_s"] - best.step_time_s
        assert sum(entry["costs_s"].values()) == pytest.approx(difference, abs=1e-9 * best.step_time_s)
        assert (entry["slower_pct"] >= -1e-9) == entry["fits"], "what is faster than the best doesn't fit"
        assert "\n" not in entry["why"]
        assert ("s not fit" in entry["why"] or "may not fit" in entry["why"]) == (not entry["fits"])
        keys_of = {key: value for key, value in entry["layout"].items() if key != "dp"}
        risk = predict(LLAMA, H100, Layout.parse(keys_of), 8192).risk
        assert ("may not fit" in entry["why"]) == (risk == "likely"), "as `predict` of this layout puts it"


def test_a_near_loser_is_priced_as_predict_prices_its_layout(plan: Plan) -> None:
    for entry in plan.why_not[:4]:
        keys = {key: value for key, value in entry["layout"].items() if key != "dp"}
        prediction = predict(LLAMA, H100, Layout.parse(keys), 8192)
        assert prediction.step_time_s == pytest.approx(entry["step_time_s"], rel=1e-9)


def test_a_slower_layout(plan: Plan) -> None:
    answer = why_not(plan, {"tp": 8, "pp": 8})
    assert answer["verdict"] == "slower"
    assert (answer["layout"]["tp"], answer["layout"]["pp"]) == (8, 8)
    assert answer["why"].startswith("tp 8, pp 8 (with ")
    assert "schedule 1f1b, " in answer["why"].split(")")[0]
    plain = {"tp": 8, "pp": 8, "schedule": "1f1b"}
    fixed = search(LLAMA, H100, devices=128, seq_len=8192, global_batch=256, fixed=plain)
    assert answer["best_such"]["step_time_s"] == pytest.approx(fixed.best[0].prediction.step_time_s, rel=1e-12)
    assert answer["best_such"]["step_time_s"] <= answer["step_time_s"]


@pytest.mark.parametrize("given", [{"tp": 8}, {"tp": 4, "pp": 4, "virtual_stages": 5}, {"zero_stage": 1, "cp": 2}])
def test_a_layout_is_completed_as_predict_completes_it(plan: Plan, given: dict[str, int]) -> None:
    sizes = {"devices": 128, "global_batch": 256}
    answer = why_not(plan, given)
    predicted = sw.predict(LLAMA, H100, {**sizes, **given}, seq_len=8192, explain=False)
    assert answer["layout"] == predicted["layout"]
    assert answer["step_time_s"] == pytest.approx(predicted["step_time_s"]["p50"], rel=1e-9)


def test_a_pipeline_without_a_schedule_gets_the_default_one(plan: Plan) -> None:
    """1F1B; interleaved with chunks; the trainer's first schedule if it lacks these."""
    chunks = why_not(plan, {"tp": 4, "pp": 4, "virtual_stages": 5})
    assert chunks["layout"]["schedule"] == "interleaved"
    named = why_not(plan, {"tp": 4, "pp": 4, "schedule": "zb-h1"})
    assert named["layout"]["schedule"] == "zb-h1"
    assert why_not(plan, {"tp": 8})["layout"]["pp"] == 1  # what isn't given is 1
    arguments = {"devices": 16, "seq_len": 2048, "global_batch": 32, "framework": "maxtext", "explain": False}
    small = search(load_model_spec("llama-3.2-1b"), H100, **arguments)  # type: ignore[arg-type]
    assert why_not(small, {"pp": 2})["layout"]["schedule"] == "gpipe"


def test_keys_that_were_not_given_are_listed_where_they_differ(plan: Plan) -> None:
    best, answer = plan.best[0].keys, why_not(plan, {"tp": 8, "pp": 1})
    named = answer["why"].split("(with ")[1].split(")")[0]
    for key in ("micro_batch", "recompute", "offload", "zero_stage"):
        assert (f"{key} " in named) or answer["layout"][key] == best[key], key


def test_the_best_itself(plan: Plan) -> None:
    best = plan.best[0].layout
    answer = why_not(plan, {"tp": best.tp, "pp": best.pp, "schedule": best.schedule})
    assert answer["verdict"] == "best"
    assert answer["why"].endswith(": this is the best")


def test_a_better_layout_outside_the_fixed_axes() -> None:
    arguments = {"devices": 128, "seq_len": 8192, "global_batch": 256, "explain": False, "fixed": {"tp": 8}}
    narrow = search(LLAMA, H100, **arguments)  # type: ignore[arg-type]
    answer = why_not(narrow, {"tp": 2})
    assert answer["verdict"] == "best"
    assert "% better (" in answer["why"]


def test_a_layout_that_does_not_fit_lacks_memory_and_has_a_fix(plan: Plan) -> None:
    keys = {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 1, "offload": "none", "recompute": "none"}
    answer = why_not(plan, keys)
    assert answer["verdict"] == "does not fit"
    assert answer["lacks_gib"] > 0
    usable = plan.best[0].prediction.usable_gib
    assert f"{answer['lacks_gib'] + usable:.1f} GiB of the {usable:.1f} there are" in answer["why"]
    assert answer["smallest_fix"]


def test_an_illegal_layout_breaks_a_rule_and_has_a_legal_neighbour(plan: Plan) -> None:
    answer = why_not(plan, {"tp": 3, "pp": 4})
    assert answer["verdict"] == "not legal"
    assert answer["rule"] == "tp 3 does not divide devices 128"
    assert answer["mend"].startswith("tp ")
    assert answer["slower_pct"] >= 0
    deep = why_not(plan, {"pp": 128})
    assert deep["rule"] == "pp 128 is more than the model's 80 layers"
    with pytest.raises(UserError, match="unknown axis"):
        why_not(plan, {"tensor": 4})
