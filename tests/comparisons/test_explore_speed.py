"""The script that times the page of `explore`, and what the page's document says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.report.browser import needs_browser

ROOT = Path(__file__).resolve().parents[2]


@needs_browser
@pytest.mark.slow
def test_the_script(script):
    data, text = script("explore_speed.py", "--quick")
    assert data["moves"] == len(data["seen_ms"]) == 6
    assert 0 < min(data["server_cpu_ms"]) < max(data["seen_ms"])
    assert "slider to picture" in text


def test_the_page_has_the_newest_figures():
    newest = sorted((ROOT / "comparisons" / "results").glob("*-explore-speed.json"))[-1]
    data, page = json.loads(newest.read_text(encoding="utf-8")), (ROOT / "docs" / "explore.md").read_text("utf-8")
    said = re.search(r"(\d+) ms, the median of (\d+) moves .*?computes (\d+) ms", page, re.DOTALL)
    assert said is not None
    seen, served = (sorted(data[key]) for key in ("seen_ms", "server_cpu_ms"))
    median = [(row[len(row) // 2] + row[(len(row) - 1) // 2]) / 2 for row in (seen, served)]
    assert [int(text) for text in said.groups()] == [round(median[0]), data["moves"], round(median[1])]
    assert data["moves"] >= 30
