"""The page about serving: both plots with targets, other layouts and measured runs; a layout that doesn't fit."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scalewright as sw
from scalewright.report.inference import write_served
from scalewright.report.sections.serving_curves import log_ticks, plot, sections


@cache
def searched() -> dict[str, Any]:
    """The cheapest layout within targets; the nearest measured runs have latencies."""
    return dict(sw.inference("qwen3-8b", "dgx-h100", 232, 220, tpot_s=0.03, ttft_s=1, search=True, engine="sglang"))


def test_a_plot_has_the_curve_the_targets_and_what_is_near() -> None:
    answer = searched()
    shown = plot(answer, "tpot_s")
    kinds = [dot["kind"] for dot in shown["dots"]]
    assert kinds.count("") == len(answer["curve"])
    assert kinds.count("best") == 1
    assert kinds.count("front") >= len(answer["search"]["best"]) - 1  # one of them is the layout itself
    assert kinds.count("measured") == sum(bool(row["tpot_s"]) for row in answer["evidence"]["nearest"]) > 0
    assert all(0 <= dot["x"] <= 1 and 0 <= dot["y"] <= 1 for dot in shown["dots"])
    chosen = next(dot for dot in shown["dots"] if dot["kind"] == "best")
    assert 1 - chosen["y"] <= shown["limit"] + 1e-3  # it keeps the target


def test_more_in_flight_is_farther_right_and_later() -> None:
    places = [dot for dot in plot(searched(), "tpot_s")["dots"] if dot["kind"] == ""]
    assert [dot["x"] for dot in places] == sorted(dot["x"] for dot in places)
    assert [-dot["y"] for dot in places] == sorted(-dot["y"] for dot in places)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.02, 0.03, [0.02, 0.022, 0.024]),
        (0.004, 0.3, [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]),
        (0.01, 1e4, [0.01, 0.1, 1.0]),
    ],
)
def test_ticks(low: float, high: float, wanted: list[float]) -> None:
    assert log_ticks(low, high)[: len(wanted)] == pytest.approx(wanted)
    assert len(log_ticks(low, high)) <= 8


def test_the_page_is_one_file(tmp_path: Path) -> None:
    text = write_served(searched(), tmp_path / "served.html").read_text()
    for words in (
        "Each token (TPOT)",
        "First token (TTFT)",
        "target 30 ms",
        "keeps its targets",
        "The nearest measured",
    ):
        assert words in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_what_does_not_fit_has_no_plot(tmp_path: Path) -> None:
    answer = sw.inference("llama-3.1-405b", "rtx-4090", 128, 128, layout={"tp": 8})
    assert sections(answer) == []
    assert "it doesn't fit" in re.sub("&#39;", "'", write_served(answer, tmp_path / "x.html").read_text())


def test_the_commands(call_cli, tmp_path: Path) -> None:
    asked = ("inference", "llama-3.1-8b", "--cluster", "dgx-h100", "--concurrency", "8")
    done = call_cli(*asked, "--out", tmp_path / "a.html", "--json")
    assert done.code == 0, done.err
    (tmp_path / "a.json").write_text(done.out)
    assert call_cli("report", tmp_path / "a.json", "--out", tmp_path / "b.html").code == 0
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
    (tmp_path / "mine.html").write_text("notes")
    refused = call_cli(*asked, "--out", tmp_path / "mine.html")
    assert refused.code == 2
    assert "no report" in refused.err
    (tmp_path / "other.json").write_text("{}")
    assert call_cli("report", tmp_path / "other.json").code == 2
