"""The page of accuracy, made from a few sources by the script; llm-analysis refuses what it can't express."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.accuracy_figures import COLUMNS, save_peer
from harness.accuracy_page import pct, table
from harness.accuracy_reasons import row_reason
from harness.llm_analysis_rows import refusal

from scalewright.plan.fitting.runs import MEASURED, Runs, read_table, runs_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("vtrain-multi", "megatron-2020", "nemo-24.07")


@pytest.fixture(scope="module")
def runs() -> Runs:
    return runs_of([row for row in read_table(MEASURED) if row["source"] in (*SOURCES, "megatron-bridge")])


@pytest.mark.slow
def test_the_script(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "comparisons/accuracy.py", "--out", str(tmp_path), "--sources", *SOURCES]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=250)
    pages = [(tmp_path / name).read_text(encoding="utf-8") for name in ("accuracy.md", "accuracy-tables.md")]
    text = "".join(pages)
    assert len(pages[0].split()) < 2400  # what a reader needs; the other page is for looking up
    result = json.loads(next(tmp_path.glob("*-accuracy.json")).read_text(encoding="utf-8"))
    for name in ("scatter", "sources", "size", "coverage", "ranking", "memory"):
        assert (tmp_path / "accuracy" / f"{name}.png").stat().st_size > 5000
        assert f"accuracy/{name}.png" in text
    assert {entry["group"] for entry in result["left_out"]["source"]} == set(SOURCES)
    # left out, a source is never nearer than by chance to what was fitted on it: the two are different runs
    for entry in result["left_out"]["source"]:
        assert entry["left_out"] != entry["shipped"]
        assert f"| {entry['group']} | {entry['rows']} | {pct(entry['left_out'])} |" in text
    assert "| nan" not in text
    assert "{{" not in text


def test_llm_analysis_refuses_what_it_has_no_words_for(runs: Runs) -> None:
    reasons = [refusal(request) for request in runs.requests]
    for request, why in zip(runs.requests, reasons, strict=True):
        if request.model.moe or request.cp > 1 or request.tp > 8:
            assert why
    assert any(why is None for why in reasons)


def test_the_peers_answers_are_compared_on_its_own_rows(tmp_path: Path) -> None:
    """The saved table is what the page reads: as many rows as runs, each with answers or a reason."""
    path = max((ROOT / "comparisons" / "results").glob("*-llm-analysis-*.csv"))
    answers = read_table(path)
    assert tuple(answers[0]) == COLUMNS
    assert all(bool(answer["iteration_s"]) != bool(answer["refused"]) for answer in answers)
    again = tmp_path / "again.csv"
    save_peer(answers, again)
    assert again.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_a_reason_for_a_row(runs: Runs) -> None:
    experts = [i for i, r in enumerate(runs.requests) if r.model.moe and r.framework.kernels == "modern"]
    early = next(i for i in experts if runs.requests[i].framework.year < 2026)
    late = next(i for i in experts if runs.requests[i].framework.year >= 2026)
    assert "before 2026" in row_reason(runs.rows[early], runs.requests[early], -0.4)
    assert row_reason(runs.rows[early], runs.requests[early], 0.4) == "unknown"
    assert row_reason(runs.rows[late], runs.requests[late], -0.4) == "unknown"
    assert row_reason({"source": "elsewhere"}, runs.requests[0], 0.4) == "unknown"


def test_tables() -> None:
    assert table(["a", "b"], [["x", pct(1.26)], ["y", pct(-2.0, signed=True)]]).splitlines() == [
        "| a | b |", "| --- | ---: |", "| x | 1.3 |", "| y | -2.0 |",
    ]  # fmt: skip
    assert pct(None) == pct(float("nan")) == "–"
