"""What `sw.plan` and `sw.predict` give: dictionaries that print as the command does."""

from __future__ import annotations

import json

import html5lib
import pytest

import scalewright as sw
from scalewright.report.document import read_document
from scalewright.report.present.prediction import what_if
from scalewright.spec.common.formatting import decimal, short_time
from scalewright.spec.step_parts import PARTS, RISK_TERMS


@pytest.fixture(scope="module")
def predicted():
    return sw.predict("llama-3.2-1b", "dgx-h100", {"devices": 8}, 2048)


@pytest.fixture(scope="module")
def planned():
    return sw.plan("llama-3.2-1b", "dgx-h100", 8, 2048, 64)


def body(page: str) -> str:
    """The text of well-formed HTML without anything that loads or runs."""
    tree = html5lib.HTMLParser(strict=True).parseFragment(page)
    assert "<script" not in page
    assert "http" not in page
    return " ".join("".join(tree.itertext()).split())


def test_an_answer_is_the_dictionary_that_it_was(predicted, planned):
    assert json.loads(json.dumps(predicted)) == predicted
    assert isinstance(planned, dict)
    assert planned["best"][0]["layout"]["devices"] == 8


def test_it_prints_as_the_command_does(call_cli, predicted, planned):
    asked = ("predict", "llama-3.2-1b", "--cluster", "dgx-h100", "--seq-len", 2048, "--devices", 8)
    for flags, text in (((), str(predicted)), (("--all",), predicted.text(everything=True))):
        said, printed = call_cli(*asked, *flags).out.splitlines(), text.splitlines()
        assert said[:3] == printed[:3]
        assert said[4:-1] == printed[4:-1]  # but for what comes next, and how one gets the rest
    assert repr(planned) == str(planned)
    assert "layouts judged" in str(planned)
    assert len(str(planned).splitlines()) < 40 < len(planned.text(everything=True).splitlines()) < 120


def test_a_notebook_shows_figures_and_bars(predicted, planned):
    for found in (predicted, planned):
        text = body(found._repr_html_())
        best = found if "step_time_s" in found else found["best"][0]
        assert short_time(best["step_time_s"]["p50"]) in text
        assert best["bottleneck"].split()[0] in text
        assert f"{decimal(best['memory_gib']['peak'], 3)} of 71.7 GiB: fits" in text
    assert len(planned._repr_html_()) < 30_000


@pytest.mark.parametrize("risk", list(RISK_TERMS))
def test_a_notebook_and_the_terminal_share_their_terms(predicted, risk):
    """The risk of fitting, and the parts of a step."""
    changed = type(predicted)({**predicted, "risk": risk, "time_breakdown_s": {"dp_exposed": 1.0}})
    for term in (RISK_TERMS[risk], PARTS["dp"]):
        assert term in body(changed._repr_html_())
        assert term in str(changed)


def test_the_terminal_has_settings_before_hardware(predicted):
    """Even where hardware gains more; a page of a plan without kinds has one group."""
    rows = [
        {"change": "peak x2", "kind": "hardware", "step_time_s": 1.0, "gain_pct": 90.0},
        {"change": "tp x2", "kind": "setting", "step_time_s": 1.5, "gain_pct": 5.0},
    ]
    text = type(predicted)({**predicted, "what_if": rows}).text(everything=True)
    assert text.index("tp x2") < text.index("other hardware") < text.index("peak x2")
    older = [{key: row[key] for key in row if key != "kind"} for row in rows]
    tables = [*what_if(read_document({**predicted, "what_if": older}).best[0])]
    assert [table.heads[0] for table in tables] == ["what was tried"]


def test_names_are_escaped(predicted):
    changed = type(predicted)({**predicted, "bottleneck": "<img src=x onerror=alert(1)>"})
    changed["model"] = {**changed["model"], "name": "<b>"}
    assert "<img" not in changed._repr_html_()
    assert "&lt;b&gt;" in changed._repr_html_()


def test_a_part_of_an_answer_is_shown_as_a_dictionary(predicted):
    part = type(predicted)({"fits": True})
    assert repr(part) == "{'fits': True}"
    assert part._repr_html_() is None


def test_an_answer_that_was_changed_is_shown_as_a_dictionary_at_worst(predicted):
    """A repr must not raise, whatever stands in it; nor has it colours, where a CI job wants some."""
    for original in (sw.diagnose("example"), sw.diagnose("example-log"), predicted):  # twice: it stays a function
        for key in original:
            for value in (None, "x", [None], {}):
                changed = type(original)({**original, key: value})
                assert str(changed)
                assert repr(changed)
                changed._repr_html_()


def test_its_text_has_no_colours(predicted, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in str(predicted) + sw.diagnose("example").text(everything=True)
