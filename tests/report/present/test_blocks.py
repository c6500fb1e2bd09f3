"""Blocks: what is shown unasked, and the same block in each medium."""

from __future__ import annotations

import pytest

from scalewright.cli.terminal import show
from scalewright.report.page import Page, block_section, render
from scalewright.report.present.blocks import (
    Bar,
    Bars,
    Line,
    Note,
    Part,
    Shown,
    Stacks,
    Table,
    Text,
    left_out,
)
from scalewright.report.present.html import notebook
from scalewright.report.present.markdown import markdown

BARS = Bars("time", [Bar("compute", 9.0, "9 s"), Bar("other", 0.05, "50 ms"), Bar("nothing", 0.0, "0 s")])
TABLE = Table(("", "layout", "spare"), [("1", "tp 8", "x"), ("2", "pp|4", "y"), ("3", "dp 2", "z")],
              few=2, spare=("spare",))  # fmt: skip
STACKS = Stacks([Part("compute", "#", 0), Part("idle: data", ".", 1)], [("rank 0", [75.0, 25.0])])
SHOWN = Shown(
    "a model <b>", [Line("step", "1 s"), Line("assumed", "a, b", listed=True)],
    [Line("yours", "2 s"), BARS, TABLE, STACKS, Note("why not", ["one", "two"], few=1),
     Text("a file", "  - kept as it is"), Note("hidden", ["deep"], detail=True)],
)  # fmt: skip


def test_what_is_small_or_beyond_a_few_is_left_out_unasked() -> None:
    assert [bar.name for bar, _ in BARS.shares(everything=False)] == ["compute"]
    assert [bar.name for bar, _ in BARS.shares()] == ["compute", "other"]
    assert TABLE.cells(everything=False) == (["", "layout"], [["1", "tp 8"], ["2", "pp|4"]])
    assert TABLE.cells(everything=True)[0] == ["", "layout", "spare"]
    assert [left_out(block) for block in SHOWN.blocks] == [0, 0, 1, 0, 1, 0, 0]
    assert SHOWN.more == [SHOWN.blocks[-1]]


def test_the_terminal_shows_a_part_and_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show(SHOWN)
    brief = capsys.readouterr().out
    show(SHOWN, everything=True)
    everything = capsys.readouterr().out
    for word in (
        "a model <b>",
        "yours     2 s",
        "pp|4",
        "  ... 1 more",
        "    - kept as it is",
        "compute 75.0%",
    ):
        assert word in brief
    for word in ("50 ms", "dp 2", "spare", "two", "deep"):
        assert word not in brief
        assert word in everything


def test_a_notebook_a_page_and_a_ticket_have_all_of_it() -> None:
    section = block_section("all", "All", [*SHOWN.head, *SHOWN.blocks[:1], *SHOWN.blocks[2:]])
    assert section is not None
    page = render(Page("t", "", "plain", (), [section], styles=("report.css", "plan.css")))
    for text in (notebook(SHOWN), page, markdown(SHOWN)):
        for word in ("a, b", "tp 8", "dp 2", "compute", "two", "kept as it is", "deep"):
            assert word in text, word
    assert "<b>" not in notebook(SHOWN)
    assert "pp\\|4" in markdown(SHOWN)


def test_neighbouring_lines_are_one_list() -> None:
    section = block_section("all", "All", [*SHOWN.head, SHOWN.blocks[0], TABLE])
    assert section is not None
    assert [group["kind"] for group in section.data["blocks"]] == ["lines", "Table"]
    assert block_section("all", "All", []) is None
