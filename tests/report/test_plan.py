"""The report of a plan: self-contained, without errors in a browser, and true to the document."""

from __future__ import annotations

import copy
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from report.browser import in_browser, needs_browser
from report.page_checks import Seen, read_page
from report.plan_documents import DEVICE, PARTS, make_estimate, make_plan, write_plan
from scalewright.plan.answer import answer
from scalewright.plan.predict import predict
from scalewright.plan.stages import pipeline, stages
from scalewright.plan.whole_run import WholeRun
from scalewright.report.plan import write_plan_file
from scalewright.spec.common.formatting import count, decimal, share, short_time
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import StageCost, schedule, simulate

SECTIONS = ["overview", "layouts", "reasons", "evidence", "pipeline", "time", "what-if", "memory", "pareto", "ranks"]
OF_ONE = [name for name in SECTIONS if name not in ("pareto", "layouts", "reasons")]


def _page(folder: Path, document: dict[str, Any]) -> Seen:
    return read_page(write_plan(document, folder / "plan.html"))


def test_a_search_shows_everything(tmp_path: Path) -> None:
    page = _page(tmp_path, make_plan())
    assert [found["id"] for found in page.having("section")] == SECTIONS
    for said in (
        "llama-test on 64 x h100-sxm fits", "8,765 layouts in 345 ms", "6.42 – 7.96 s",
        "432 TFLOP/s per device, HFU 46.1%", "of 72.3 GiB that a device gives (80.0 in all)",
        "tp 4 pp 4 x 2 interleaved dp 4 zero 1 micro-batch 2 x 8 recompute selective bf16",
        "pipeline bubble", "peak x2", "+76.2%", "−9.4%",
        "not trainable yet: cp 2 is not run yet", "81.7 GiB, more than the card has",
        "predicted 11.3 s (+8%); somebody-2024", "no run of scalewright", "precision bf16",
        "NVLink joins 8 at 450.0 GB/s", "InfiniBand at 50.0 GB/s",
    ):  # fmt: skip
        assert said in page.body, said


def test_one_layout_shows_what_it_has(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate())
    assert [found["id"] for found in page.having("section")] == OF_ONE
    assert "llama-test on 64 x h100-sxm" in page.body


def test_what_was_never_measured_stands_once(tmp_path: Path) -> None:
    evidence = {"nearest": [], "extrapolates": ["no run of scalewright"], "never_measured": ["scalewright", "t9"]}
    page = _page(tmp_path, make_estimate(evidence=evidence))
    assert "beyond what was measured no run of t9 no run of scalewright" in page.body


def test_a_layout_that_the_trainer_lacks_is_marked(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate(framework="megatron", lacks=["schedule zb-h1"]))
    assert "megatron can't run it: it has no schedule zb-h1" in page.body
    page = _page(tmp_path, make_estimate(framework="scalewright", lacks=["cp 2 needs another trainer"]))
    assert "`train` can't run it: cp 2 needs another trainer" in page.body


def test_every_number_is_the_documents(tmp_path: Path) -> None:
    """What stands in tiles and tables is a number of the document, or follows from it by one division."""
    document = make_plan()
    page = _page(tmp_path, document)
    known = set(_said(document))
    step = sum(PARTS.values())
    known |= {share(seconds / step) for seconds in PARTS.values()}
    known |= {f"+{100 * (other / step - 1):.1f}%" for other in (7.77, 8.24)}
    known |= {"+76.2%", "−9.4%", "344 GB", "28.8 GB", "8.59 GB"}
    known |= {decimal(42.1 - rank, 3) for rank in range(4)}  # the sum of a rank's kinds
    timing = simulate(schedule("interleaved", 4, 2, 8), StageCost(0.03, 0.03, 0.03))
    known |= {short_time(timing.makespan), share(timing.bubble_fraction), "8", "1", "3"}
    shown = re.findall(r"<(strong|em|td|tfoot)\b([^>]*)>(.*?)</\1>", page.text, re.DOTALL)
    checked = 0
    for _, attributes, inside in shown:
        if re.search(r'class="(index|group|does)', attributes):
            continue  # indices of ranks: the map's own tests
        text = html.unescape(re.sub(r"<[^>]*>", " ", inside))
        for number in re.findall(r"[+−]?\d[\d.,]*(?: ?(?:%|µs|ms|s|GiB|[kMGT]B)(?![a-z])|[kMBT])?", text):
            words = number.strip().rstrip(",")
            assert words in known or words.removesuffix(" GiB") in known, (words, text)
            checked += 1
    assert checked > 50


def _said(value: Any) -> list[str]:
    """A document's numbers in all the ways in which a page may say them; numbers inside texts too."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in _said(item)]
    if isinstance(value, list):
        return [str(len(value)), *(text for item in value for text in _said(item))]
    if isinstance(value, str):
        return re.findall(r"\d[\d.,]*%?", value)
    if isinstance(value, bool) or value is None:
        return []
    return [f"{value:g}", f"{value:,.0f}", decimal(value, 3), count(value), short_time(value), share(value)]


def test_changing_the_document_changes_the_page(tmp_path: Path) -> None:
    document = make_estimate()
    before = _page(tmp_path, document).text
    for path in (
        ("tokens_per_s",), ("mfu",), ("step_time_s", "p90"), ("time_breakdown_s", "compute"),
        ("comm_bytes", "tp"), ("memory_gib", "peak"), ("what_if", 0, "gain_pct"),
        ("evidence", "nearest", 0, "measured"),
        ("stages", 0, "seconds", "forward"), ("stages", 1, "memory_gib", "activations"),
        ("device", "usable_gib"), ("device", "links", 0, "bytes_per_s"),
    ):  # fmt: skip
        changed: Any = copy.deepcopy(document)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] *= 1.1
        assert _page(tmp_path, changed).text != before, path


def test_values_are_escaped(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    document = make_plan(model=evil, cluster=evil, why_not=[{"layout": {"tp": 2, "recompute": evil}, "why": evil}])
    best = document["best"][0]
    best["bottleneck"] = best["untrainable"] = evil
    best["layout"] |= {"precision": evil, "offload": evil}
    best["assumed"] = [evil]
    best["evidence"]["nearest"][0]["source"] = evil
    best["what_if"][0]["change"] = evil
    best["device"] = {**DEVICE, "name": evil, "links": [{"kind": evil, "devices": None, "bytes_per_s": 1e9}]}
    best["time_breakdown_s"] = {**PARTS, evil: 0.1}
    page = _page(tmp_path, document)
    assert not page.having("img")
    assert len(page.having("script")) == 3
    in_data = page.text.count(r"\u003cscript\u003ealert(1)")
    assert page.text.count("<script>alert(1)") == 0
    assert page.text.count("&lt;script&gt;alert(1)") > 8
    assert in_data >= 1  # the link's name, for the map


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("NaN", "is not a JSON number"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "a plan holds keys and values"),
        ("{}", "holds no plan"),
        ('{"best": 3}', "best is not a list"),
        ('{"best": [3]}', r"best\[0\] does not hold keys and values"),
        ('{"best": [{}]}', r"best\[0\] has no layout with a step time"),
        ('{"layout": {"tp": 2}, "step_time_s": {"p50": "soon"}}', "step_time_s.p50 is 'soon', not a number"),
        ('{"layout": {"tp": 2}, "step_time_s": {"p50": 1e999}}', "not a number"),
        ('{"layout": {"tp": 2}, "step_time_s": -1}', "no layout with a step time"),
        ('{"layout": {"tp": 2}, "step_time_s": 1, "memory_gib": [1]}', "memory_gib does not hold keys"),
    ],
)
def test_what_is_no_plan_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        write_plan_file(path)
    assert "plan.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "plan.html").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        write_plan_file(tmp_path / "absent.json")


def test_the_page_is_put_beside_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(make_plan()))
    assert write_plan_file(path) == tmp_path / "mine.html"
    assert write_plan_file(path, tmp_path / "other.html") == tmp_path / "other.html"
    assert (tmp_path / "mine.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_a_bare_layout_is_enough(tmp_path: Path) -> None:
    page = _page(tmp_path, {"layout": {"devices": 4, "tp": 2, "pp": 2}, "step_time_s": 0.5})
    assert "500 ms" in page.body
    assert "doesn't say how long each stage takes" in page.body  # no timeline is made up
    assert "doesn't say which links join the devices" in page.body


def test_nothing_fits(tmp_path: Path) -> None:
    page = _page(tmp_path, make_plan(best=[], pareto=[]))
    assert "no layout fits" in page.body
    assert "81.7 GiB, more than the card has" in page.body
    assert [found["id"] for found in page.having("section")] == ["layouts", "reasons"]


def test_a_search_that_was_stopped_says_so(tmp_path: Path) -> None:
    assert "The search was stopped before its end" in _page(tmp_path, make_plan(complete=False)).body


def test_parts_that_do_not_add_up_are_told(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate(step_time_s={"p50": 9.0}))
    assert "The parts make 7.11 s, the step takes 9 s." in page.body


def test_memory_above_the_line_is_marked(tmp_path: Path) -> None:
    page = _page(tmp_path, make_estimate(fits=False, device={**DEVICE, "usable_gib": 40.0}))
    assert "does not fit" in page.body
    over = re.findall(r'<em class="bad">([^<]*)</em>', page.text)
    assert over == ["42.1 GiB", "41.1 GiB", "40.1 GiB"]  # of four ranks; the last has 39.1


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_browser_finds_no_fault(tmp_path: Path, width: int) -> None:
    for number, document in enumerate(
        (make_plan(), make_estimate(pp=1, virtual_stages=1, dp=16, stages=[]), make_plan(best=[], pareto=[]))
    ):
        page = write_plan(document, tmp_path / f"{number}.html")
        wide = in_browser(page, "return document.documentElement.scrollWidth;", width)
        assert wide <= max(width, 500)  # Chromium's least window is 500 pixels wide


def test_the_planners_own_answers_are_drawn(tmp_path: Path) -> None:
    """A real prediction, by the planner's functions, as JSON and back."""
    plain = predict(
        load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100"),
        Layout(devices=64, tp=2, pp=4, virtual_stages=2, schedule="interleaved", global_batch=128), 8192,
    )  # fmt: skip
    found = answer(plain, run=WholeRun(1e12, price=2.0)).dump() | {"stages": stages(plain)}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found))
    page = read_page(write_plan_file(path))
    names = [section["id"] for section in page.having("section")]
    assert names == OF_ONE
    assert "llama-3.1-8b on 64 x h100-sxm" in page.body
    assert share(found["mfu"]) in page.body
    assert "The parts make" not in page.body  # they add up
    data = json.loads(re.search(r'id="drawings">(.*?)</script>', page.text, re.DOTALL)[1])  # type: ignore[index]
    assert data[0]["seconds"] == pytest.approx(pipeline(plain).makespan)  # drawn as the planner counts it


def test_from_the_command_line(call_cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(make_plan()))
    made = call_cli("report", path, "--json").json()
    assert made == {"report": str(tmp_path / "plan.html")}
    assert read_page(Path(made["report"])).having("section")
    path.write_text('{"best": [{"layout": {}}]}')
    refused = call_cli("report", path)
    assert refused.code == 2
    assert "plan.json: best[0] has no layout with a step time" in refused.error


def test_what_else_a_search_may_hold(tmp_path: Path) -> None:
    rows = [
        {"devices": 32, "step_time_s": 13.1, "tokens_per_s": 40100, "speedup": 1.0, "efficiency": 1.0,
         "prediction": make_estimate()},
        {"devices": 4096, "step_time_s": None, "problem": "no layout of 4096 devices fits"},
    ]  # fmt: skip
    scaling = {
        "rows": rows, "serial_share": 3.7e-5, "limit": 26815.0, "fit_error": 0.028,
        "serial_part": [{"part": "compute", "words": "computing", "seconds": 0.1, "share": 0.397}],
    }  # fmt: skip
    best = make_plan()["best"]
    best[0] |= {"trainable": False, "untrainable": "zb-pq is not run yet", "objective_value": 12.34}
    asked = {"change": "", "layout": {**best[0]["layout"], "tp": 8}, "why": "tp 8: 12.2% worse"}
    page = _page(
        tmp_path,
        make_plan(
            best=best, best_trainable=best[1], asked=asked, scaling=scaling, objective="cost", headroom=0.05,
            objective_unit="cost of a step", run_file="run.yaml",
        ),
    )  # fmt: skip
    for said in (
        "On more devices", "no layout of 4096 devices fits", "Amdahl's law, fitted): 0.0037%", "26,815 times",
        "off by 2.8% at most", "computing 39.7%", "asked", "tp 8: 12.2% worse",
        "best by cost", "5.0% of the memory kept free", "cost of a step", "12.34",
        "run.yaml under srun", "the best that `train` runs: tp 8 · pp 4", "7.77 s a step, +9.3%",
        "not trainable yet: zb-pq is not run yet",
    ):  # fmt: skip
        assert said in page.body, said


def test_numbered_dots_that_would_cover_each_other_are_one(tmp_path: Path) -> None:
    best = make_plan()["best"]
    twin = copy.deepcopy(best[0])
    twin["layout"]["recompute"] = "full"
    page = _page(tmp_path, make_plan(best=[best[0], twin, best[2]]))
    dots = re.findall(r'class="dot best[^"]*"[^>]*data-name="([^"]*)"[^>]*>([^<]*)</i>', page.text)
    assert [label for _, label in dots] == ["3", "1 2"]
    assert "recompute selective" in dots[1][0]
    assert "\n2: " in dots[1][0]
    assert "recompute full" in dots[1][0]
