"""Blocks: what is shown unasked, and the same block in each medium."""

from __future__ import annotations

import pytest

from scalewright.cli.terminal import show
from scalewright.report.page import Page, block_section, render
from scalewright.report.present.blocks import Bar, Bars, Line, Note, Part, Shown, Stacks, Table, Text, left_out
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
    for word in ("a model <b>", "yours     2 s", "pp|4", "  ... 1 more", "    - kept as it is", "compute 75.0%"):
        assert word in brief
    for word in ("50 ms", "dp 2", "spare", "two", "deep"):
        assert word not in brief
        assert word in everything


def test_a_notebook_a_page_and_a_ticket_have_all_of_it() -> None:
    section = block_section("all", "All", [*SHOWN.head, *SHOWN.blocks])
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


@pytest.mark.parametrize("columns", ["60", "80"])
def test_bars_stay_on_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    parts = [
        Part(name, sign, at) for at, (name, sign) in enumerate(zip(("compute", "waits", "idle"), "#-.", strict=False))
    ]
    rows = [(f"rank {number}", [50.0, 30.0, 20.0]) for number in range(12)]
    show(Shown("a", [], [Stacks(parts, rows, note="12 of 99", few=9), BARS]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert lines[10] == "  rank 8  " + lines[10][10:]
    assert "  ... 3 more" in lines
    assert "12 of 99" in lines


def test_the_rest_is_offered_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Shown("a", [Line("cause", "none")], [Note("why", ["one"]), Table(("x",), [("1",)], few=5)])
    for shown, offered in ((whole, False), (SHOWN, True)):
        show(shown)
        assert ("--all shows the rest" in capsys.readouterr().out) == offered


def test_a_name_is_whole_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"elementwise_kernel<gpu_{what}>", "1") for what in ("add", "mul")]
    table = Table(("kernel", "ms"), rows, short=18, note="as seen")
    shown = Shown("a", [], [table])
    show(shown)
    assert "gpu_add" not in capsys.readouterr().out
    show(shown, everything=True)
    assert "gpu_add" in capsys.readouterr().out
    assert "gpu_mul" in notebook(shown)
    text = markdown(shown)
    assert text.count("as seen") == 2  # a cut table, and folded the whole one
    assert text.count("gpu\\_mul") == 1


def test_bars_beside_each_other_are_shares_of_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    bars = Bars("by stage", [Bar("all", 8.0, "8 GB"), Bar("half", 4.0, "4 GB"), Bar("none", 0.0, "0 B")], beside=True)
    assert [share for _, share in bars.shares(everything=False)] == [1.0, 0.5, 0.0]
    shown = Shown("memory", [], [bars])
    show(shown)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert lines["all"].count("█") == 2 * lines["half"].count("█")
    for text in (lines["all"], markdown(shown)):
        assert "%" not in text
    page = notebook(shown)
    assert page.count("width:50.00%") == 1
    assert all(name in page for name in ("all", "half", "none"))
