"""The page's numbers are those of `predict` and `plan`; its run file is one; a layout that can't be is a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

import scalewright as sw
from scalewright.explore.answer import picture, reasons, searched
from scalewright.explore.state import State, read_state
from scalewright.spec.common.formatting import count
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster

LAYOUT = {"devices": 64, "tp": 2, "pp": 2, "global_batch": 256, "micro_batch": 1}
STATE = State("llama-3.1-8b", "dgx-h100", 4096, LAYOUT)


@pytest.fixture(scope="module")
def shown():
    return picture(STATE)


@pytest.fixture(scope="module")
def why():
    return reasons([STATE])[0]


def test_a_layout_that_train_lacks_has_no_run_file():
    (why,) = reasons([State(STATE.model, STATE.cluster, 4096, {**LAYOUT, "schedule": "dualpipe"})])
    assert why["run_file"].startswith("# `train` can't run it: ")


def test_the_numbers_are_those_of_predict(shown):
    predicted = sw.predict(STATE.model, STATE.cluster, LAYOUT, 4096, explain=False)
    for key, value in shown["numbers"].items():
        assert value == predicted[key], key
    step = shown["roofline"]["step"]
    assert step["flops_per_s"] == predicted["mfu"] * shown["roofline"]["peak"]


def test_the_roofline_s_operators_make_up_the_forward(shown):
    data = shown["roofline"]
    chip = load_cluster("dgx-h100").device
    assert data["bytes_per_s"] == chip.memory_bytes_per_s
    assert sum(point["share"] for point in data["points"]) == pytest.approx(1, abs=1e-9)  # sums of floats
    intensity = {point["name"]: point["intensity"] for point in data["points"]}
    # a product of [4096, k] by [k, n / tp] in 2 bytes each: 2 m k n / (2 (m k + k n + m n)), k 4096, n 14336 / 2
    assert intensity["mlp.gate"] == pytest.approx(
        4096 * 4096 * 7168 / (4096 * 4096 + 4096 * 7168 + 4096 * 7168), rel=0.01
    )


def test_the_pictures_are_the_report_s(shown):
    assert shown["memory"].count('class="row"') == 2  # pipeline ranks
    assert "rank 0" in shown["memory"]
    assert shown["drawing"]["ranks"]
    assert "tensor parallel" in shown["time"]


def test_the_run_file_is_the_layout_s(shown, why, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(why["run_file"], encoding="utf-8")
    again = sw.predict(sw.read(path), "dgx-h100", explain=False)
    assert again["layout"]["tp"] == 2
    assert again["step_time_s"] == shown["numbers"]["step_time_s"]


def test_reasons_name_changes_and_measured_runs(why):
    assert "<table" in why["what_if"]
    assert "measured" in why["evidence"]


@pytest.mark.parametrize(
    ("change", "how"),
    [({"tp": 3}, "use devices 66"), ({"zero_stage": 3, "pp": 64}, "use"), ({"micro_batch": 7}, "use global_batch")],
)
def test_a_layout_that_cannot_be_is_a_sentence_with_a_way_out(change, how):
    with pytest.raises(UserError) as error:
        picture(State(STATE.model, STATE.cluster, 4096, {**LAYOUT, **change}))
    assert how in error.value.how


@pytest.mark.slow
def test_a_search_s_points_are_priced_as_their_states():
    search = searched(STATE)
    best = search["best"][0]
    again = picture(read_state(best["state"], {STATE.model}, {STATE.cluster}))
    assert again["numbers"]["step_time_s"]["p50"] == pytest.approx(best["seconds"], rel=1e-9)  # rounding alone
    planned = sw.plan(STATE.model, STATE.cluster, 64, 4096, 256, explain=False)
    assert best["seconds"] == planned["best"][0]["step_time_s"]["p50"]
    assert best["gib"] == planned["best"][0]["memory_gib"]["peak"]


def test_money_electricity_and_the_trainer_are_asked_about():
    """The whole run's figures are those of `predict`; a price is the link's, or the list's."""
    asked = replace(STATE, tokens=2 * 10**12, price=3.0, framework="megatron")
    restored = read_state(asked.query(), {STATE.model}, {STATE.cluster})
    assert restored == replace(asked, layout=restored.layout)
    assert asked.command().endswith("--tokens 2000000000000 --price 3 --framework megatron")
    shown = {tile["name"]: tile["value"] for tile in picture(asked)["tiles"]}
    run = {"tokens": 2e12, "price": 3.0, "framework": "megatron"}
    total = sw.predict(STATE.model, STATE.cluster, LAYOUT, 4096, explain=False, **run)["total"]
    assert shown["Cost"] == f"{count(total['cost'])} USD"
    assert shown["Whole run"] == f"{count(total['days'])} days"
    assert {tile["name"]: tile["value"] for tile in picture(STATE)["tiles"]}["Cost"] != shown["Cost"]
    keys = {row["key"]: row["value"] for row in picture(STATE)["controls"]}
    assert (keys["tokens"], keys["price"], keys["framework"]) == (10**12, "of the list", "scalewright")


@pytest.mark.parametrize("query", ["price=0", "price=much", "framework=../x", "tokens=1e12"])
def test_a_link_with_no_such_price_or_trainer(query):
    with pytest.raises(UserError):
        read_state(f"{STATE.query()}&{query}", {STATE.model}, {STATE.cluster})
