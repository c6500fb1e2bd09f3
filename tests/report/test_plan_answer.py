"""A plan's page begins with what one takes along: the layout, its run file, how to start it, and how sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scalewright as sw
from report.browser import in_browser, needs_browser
from report.page_checks import Seen, read_page
from report.plan_documents import DEVICE, make_estimate, make_plan, write_plan
from scalewright.report.document import read_document
from scalewright.report.layouts import runs_in
from scalewright.report.sections.plan_overview import gauges, start
from scalewright.report.sections.plan_pipeline import fold, put_on_the_clock
from scalewright.spec.base import parse_yaml
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import RunSpec
from scalewright.spec.trains import why_not_trained

LLAMA = load_model_spec("llama-3.1-8b")


def _page(folder: Path, document: dict[str, Any]) -> Seen:
    return read_page(write_plan(document, folder / "plan.html"))


def test_the_run_file_of_a_page_is_the_one_that_plan_writes(tmp_path: Path) -> None:
    """Also of a model and a cluster that aren't presets: both are in it whole."""
    model = load_model_spec("llama-3.1-8b").replace(name="mine").dump()
    cluster = {"like": "dgx-h100", "nodes": 8}
    path = tmp_path / "run.yaml"
    plan = sw.plan(model, cluster, devices=64, seq_len=4096, global_batch=128, out=path, data="shards")
    document = read_document(plan)
    assert document.first is not None
    file, line = start(document, document.first)
    assert path.read_text(encoding="utf-8").startswith(file.text)
    assert file.note == ""
    run = RunSpec.parse(parse_yaml(file.text, "run.yaml"))
    assert run.model == ModelSpec.parse(model)
    assert {**document.first.layout, **run.layout.dump()} == document.first.layout
    assert line.text.startswith("torchrun --nnodes 8 --nproc-per-node 8 ")
    assert line.text.endswith("-m scalewright train run.yaml")


def test_a_page_of_an_odd_count_has_what_goes_faster_and_starts_that_many(tmp_path: Path) -> None:
    """100 devices are 12 nodes of 8 and one of 4; 512 sequences don't divide among them."""
    plan = sw.plan("llama-3.1-8b", "dgx-h100", devices=100, seq_len=8192, global_batch=512)
    batch, fewer = plan["nearby"]
    body = _page(tmp_path, plan).body
    assert f"a global batch of 500 instead of 512 is {1 + batch['gain_pct'] / 100:.1f}x as fast" in body
    assert "96 of your 100 devices are" in body
    assert fewer["devices"] == 96
    assert plan["best"][0]["simpler_than"] is not None
    unusual = plan["best"][0]["simpler_than"]["unusual"]
    said = "more usual than the fastest" if unusual else "the simplest within 2% of the fastest"
    assert f"the first is {said}" in body
    document = read_document(plan)
    assert document.first is not None
    _, line = start(document, document.first)
    assert "--nnodes 13 --nproc-per-node 8" in line.text
    assert line.note.endswith("with --nproc-per-node 4 on the last, which isn't filled")


def test_another_trainers_plan_offers_no_run_file(tmp_path: Path) -> None:
    best = [make_estimate(framework="megatron")]
    older = _page(tmp_path, make_plan(run_yaml=None)).text.split('id="layout-yaml"')[1].split("</pre>")[0]
    assert "global_batch: " in older
    assert "cp_kind" not in older, "a default"
    document = read_document(make_plan(best=best))
    assert document.first is not None
    (only,) = start(document, document.first)
    assert "scalewright train" not in only.text
    assert parse_yaml(only.text, "layout")["layout"]["tp"] == 4


def test_the_best_trainable_layout_is_the_run_files(tmp_path: Path) -> None:
    best = make_plan()["best"]
    best[0] |= {"trainable": False, "untrainable": "dualpipe is not run yet"}
    page = _page(tmp_path, make_plan(best=best, best_trainable=best[1], run_yaml="layout: {tp: 8}"))
    assert "tp: 8" in page.text.split('id="run-file"')[1].split("</pre>")[0]


@needs_browser
def test_copying_works_without_a_network(tmp_path: Path) -> None:
    """And what is to be copied is seen whole, on a phone, too."""
    long = "model: {name: mine}\n" * 60 + f"data: {{train: {'long/' * 60}}}\n"
    page = write_plan(make_plan(run_yaml=long), tmp_path / "plan.html")
    text, said, hidden = in_browser(
        page,
        """
        const button = document.querySelector("[data-copy=launch-line]");
        button.click();
        const text = document.getElementById("launch-line").textContent;
        const box = document.getElementById("run-file");
        const unseen = [box.scrollHeight - box.clientHeight, box.scrollWidth - box.clientWidth];
        return [text, button.hidden, unseen];
        """,
        width=500,
    )
    assert text.startswith("torchrun")
    assert said is False
    assert hidden == [0, 0]


@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"memory_gib": {"peak": 42.1}}, "fits", "good"),
        ({"memory_gib": {"peak": 70.0}}, "tight: 3.2% of memory to spare", "warn"),
        ({"memory_gib": {"peak": 42.1}, "risk": "likely"}, "likely to fit", "warn"),
        ({"memory_gib": {"peak": 42.1}, "risk": "unlikely"}, "unlikely to fit", "bad"),
        ({"fits": False}, "does not fit", "bad"),
    ],
)
def test_the_title_says_the_risk(tmp_path: Path, changes: dict[str, Any], status: str, kind: str) -> None:
    page = _page(tmp_path, make_plan(best=[make_estimate(**changes)], pareto=[]))
    assert page.having("span", class_=f"status {kind}")
    assert f"llama-test on 64 x h100-sxm {status} " in page.body


def test_memory_shows_its_band_and_the_devices_limit(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate(memory_p10_p90_gib=[38.2, 47.9]))
    assert "of 72.3 GiB that a device gives (80.0 in all); p10–p90 38.2 – 47.9 GiB" in page.body
    assert page.having("b", class_="limit")


def test_the_steps_band_is_a_bar_with_its_middle_and_both_ends(tmp_path: Path) -> None:
    document = read_document(make_estimate())
    assert document.first is not None
    bar = gauges(document, document.first)[0]
    (start, length), (low, high) = bar["band"], bar["marks"]
    assert (start, start + length) == pytest.approx((low[0], high[0]))
    assert start / (start + length) == pytest.approx(6.42 / 7.96)
    assert start < bar["middle"] < start + length < 1
    page = _page(tmp_path, make_estimate())
    assert "8 of 10 such runs are expected between p10 and p90" in page.body
    assert "Step time 7.11 s" in page.body
    drawn = [tag["style"] for tag in page.having("u") if tag.get("style", "").startswith("left:")]
    assert [float(style[5:].partition("%")[0]) for style in drawn] == [pytest.approx(100 * start, abs=0.1)]


def test_the_matrix_keeps_its_rank_number_on_a_phone(tmp_path: Path) -> None:
    """The narrow page hides the table's head, not the number: that gets a line of its own, with its name."""
    page = _page(tmp_path, make_plan())
    cells = page.text.split('<td class="rank">')[1:]
    assert [cell.partition("<")[0] for cell in cells] == ["1", "2", "3"]
    narrow = page.text.split("@media (max-width: 720px)")
    assert any('.wide-table td.rank::before { content: "Layout "' in part for part in narrow[1:])
    assert any(".wide-table td.rank { grid-column: 1 / -1;" in part for part in narrow[1:])


def test_the_pipeline_breaks_between_fill_and_drain() -> None:
    long = read_document(make_plan(best=[make_estimate(global_batch=8 * 128)])).first
    short = read_document(make_plan()).first
    assert long is not None
    assert short is not None
    clock = put_on_the_clock(long)
    assert not isinstance(clock, str)
    ends = fold(clock)
    assert ends is not None
    assert 0 < ends[0] < 0.2
    assert ends[1] == 1 - ends[0]
    whole = put_on_the_clock(short)
    assert not isinstance(whole, str)
    assert fold(whole) is None  # 8 micro-batches are drawn whole


@needs_browser
def test_the_break_is_the_first_view_and_the_whole_step_one_click_away(tmp_path: Path) -> None:
    best = [make_estimate(global_batch=8 * 128)]
    page = write_plan(make_plan(best=best), tmp_path / "plan.html")
    first, after = in_browser(
        page,
        """
        const place = document.querySelector("[data-drawing=pipeline]");
        const tip = place.querySelector(".tip");
        const read = () => {
          const box = place.getBoundingClientRect();
          const [clientX, clientY] = [box.left + 60 + (box.width - 61) / 2, box.top + 10];
          place.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
          return tip.textContent;
        };
        const first = read();
        document.querySelector("[data-zoom=all]").click();
        return [first, read()];
        """,
    )
    assert first == "Left outthe steady state repeats"
    assert "micro-batch" in after or "idle" in after


def test_what_one_can_change_is_apart_from_hardware(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate())
    hardware, vain = page.body.split("other hardware")[1].split("no help, or too large")
    assert "peak x2" in hardware
    assert "pp x2, does not fit" in vain


def test_the_matrix_marks_what_differs_and_who_cannot_run_it(tmp_path: Path) -> None:
    page = _page(tmp_path, make_plan())
    assert "All of them: pp 4 · schedule interleaved × 2 · ZeRO 1 · micro-batch 2 · recompute selective" in page.body
    bold = [found["data-label"] for found in page.having("td", class_="other")]
    assert bold == ["tp", "dp", "tp", "cp"]
    assert page.body.count("not trainable yet: cp 2 is not run yet") == 1
    twice = make_plan()["best"]
    for entry in twice[:2]:
        entry["untrainable"] = "dualpipe is not run yet"
    assert _page(tmp_path, make_plan(best=twice)).body.count("not trainable yet: dualpipe is not run yet") == 2


def test_evidence_names_trainer_date_layout_and_batch(tmp_path: Path) -> None:
    near = {
        "source": "somebody-2024", "trainer": "NeMo", "date": "2025-05", "model": "llama-3-8b",
        "device": "h100-sxm", "n_devices": 128, "seq_len": 8192, "measured": 10.5, "predicted": 11.3,
        "layout": {"tp": 2, "dp": 64, "zero_stage": 1, "global_batch": 1024, "micro_batch": 1},
    }  # fmt: skip
    page = _page(tmp_path, make_estimate(evidence={"nearest": [near]}, device=DEVICE))
    assert "10.5 s, predicted 11.3 s (+8%); NeMo, 2025-05, somebody-2024, tp 2 · dp 64 · zero 1" in page.body
    assert "micro-batch 1 x 16, batch 1,024 x 8,192" in page.body


def test_the_matrix_names_the_trainers_that_have_all_of_a_layout() -> None:
    document = read_document(make_plan())
    first, _, third = document.best
    assert runs_in(first)[:2] == ["Scalewright", "Megatron"]  # interleaved 1F1B with ZeRO 1
    assert "Scalewright" not in runs_in(third)  # context parallel is planned only
    assert "Megatron" in runs_in(third)
    dualpipe = read_document(make_plan(best=[make_estimate(schedule="dualpipe")])).first
    assert dualpipe is not None
    assert not {"Scalewright", "Megatron", "torchtitan"} & set(runs_in(dualpipe))
    for framework, title in (("torchtitan", "torchtitan"), ("nemo", "NeMo"), ("internevo", "internevo")):
        own = read_document(make_plan(best=[make_estimate(framework=framework, zero_stage=3, pp=1)])).first
        assert own is not None
        assert runs_in(own)[0] == title
        assert len(set(runs_in(own))) == len(runs_in(own))
    tpu = {"device": {**DEVICE, "name": "tpu-v5p", "kind": "tpu"}, "framework": "maxtext", "pp": 1}
    on_tpus = read_document(make_plan(best=[make_estimate(**tpu)])).first
    assert on_tpus is not None
    assert runs_in(on_tpus) == ["maxtext"]


def test_what_train_lacks_is_not_on_another_trainers_page(tmp_path: Path) -> None:
    """The planner's word for fp8 is of `scalewright train`; torchtitan, which the plan is for, has it."""
    assert why_not_trained(LLAMA, Layout(devices=8, precision="fp8", global_batch=8), 4096) == (
        "precision fp8 can be planned but not trained yet"
    )
    lost = make_plan()["why_not"][0] | {"untrainable": "cp 2 is lost"}
    plan = make_plan(best=[make_estimate(untrainable="cp 2 is not run yet", cp=2)], why_not=[lost])
    seen = []
    for framework in ("scalewright", "torchtitan"):
        plan["best"][0]["framework"] = framework
        seen.append(_page(tmp_path, plan).body.lower().count("not trainable yet"))
    assert seen == [2, 0]


@pytest.mark.parametrize("value", ["x", {}, [], [2], {"a": 1, "b": 2}])
def test_no_trainer_runs_what_is_no_layout(tmp_path: Path, value: Any) -> None:
    """A value of the wrong kind in a plan file is unknown, and its page is still made."""
    words = ("recompute", "schedule", "offload") if value != "x" else ()
    for key in ("pp", "cp", "zero_stage", *words):
        best = make_estimate()
        best["layout"][key] = value
        first = read_document(make_plan(best=[best])).first
        assert first is not None
        assert runs_in(first) == [], key
        assert _page(tmp_path, make_plan(best=[best])).text


def test_the_page_of_a_plan_for_a_layout_that_exists_shows_it(tmp_path: Path) -> None:
    yours = {"tp": 8, "zero_stage": 1, "micro_batch": 1}
    keys = {"devices": 16, "seq_len": 4096, "global_batch": 64}
    plan = sw.plan("llama-3.1-8b", "dgx-h100", **keys, yours=yours)  # type: ignore[arg-type]
    page = _page(tmp_path, plan)
    assert "yours tp 8" in page.body
    assert f"{1 + plan['yours']['gain_pct'] / 100:.1f}x as fast as yours" in page.body
    assert plan["yours"]["changes"][0]["change"] in page.body
