"""The page of a budget or a goodput: all that the command shows, in one file."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import escape

import scalewright as sw
from scalewright.report.answer import kind_of, write_answer


def test_a_budget_s_page_has_its_lines_and_its_tables(call_cli, tmp_path: Path) -> None:
    page = tmp_path / "budget.html"
    assert call_cli("budget", "--flops", "1e21", "--serve", "100B", "--out", str(page)).code == 0
    text = page.read_text()
    for words in ("Budget", "nats a token", "Training, and serving 100B tokens", "what each law says", "besiroglu"):
        assert words.lower() in text.lower()
    page.write_text("mine")
    refused = call_cli("budget", "--flops", "1e21", "--out", str(page))
    assert (refused.code, page.read_text()) == (2, "mine")


def test_report_makes_it_of_what_json_wrote(call_cli, tmp_path: Path) -> None:
    answer = sw.goodput(devices=512, days=1, trials=20)
    assert kind_of(answer) == "Goodput"
    (tmp_path / "goodput.json").write_text(json.dumps(answer))
    assert call_cli("report", str(tmp_path / "goodput.json")).code == 0
    text = (tmp_path / "goodput.html").read_text()
    assert text == write_answer(answer, tmp_path / "again.html").read_text()
    assert "of the time trains" in text
    assert "what takes the time" in text


def test_what_was_assumed_is_a_list_and_sentences_of_a_table_wrap(tmp_path: Path) -> None:
    answer = sw.budget(flops=1e21, cluster="dgx-h100", devices=8)
    text = write_answer(answer, tmp_path / "budget.html").read_text()
    for line in answer["assumed"]:
        assert f"<li>{escape(line)}</li>" in text
    assert '<td class="prose">arXiv' in text
    failures = sw.goodput(devices=512, days=1, trials=20)
    text = write_answer(failures, tmp_path / "goodput.html").read_text()
    assert text.count("<dt>assumed</dt>") == 1
    assert all(f"<li>{escape(line)}</li>" in text for line in failures["assumed"])
