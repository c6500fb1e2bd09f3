"""Tables at any width: words wrap, numbers and names stay whole."""

from __future__ import annotations

import re

import pytest

from scalewright.cli.terminal import Column, blocks, print_table
from scalewright.cli.verbs.presets import clusters, models

COLUMNS = ("ranks", "first is", "parameters held", "FLOPs", "activations GiB", "peak GiB", "layout")
ROWS = [
    ("64: 0-63", "the first", "435M", "9.422e+11", "12.345", "98.765", "tp 8 · pp 4 zb-interleaved · dp 2"),
    ("64: 64-127", "pp 1 dp_replicate 3", "314M", "9.688e+11", "12.340", "97.654", "tp 8 · pp 4 zb-h1"),
]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_numbers_are_never_cut(width, terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    print_table(COLUMNS, ROWS, "what each holds")
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    for row in ROWS:
        for cell in row[:1] + row[2:6]:
            assert cell in out
    words = out.split()
    for word in ("dp_replicate", "zb-interleaved", "zb-h1", "parameters", "activations"):
        assert word in words
    assert out.count("64: 64-127") == (1 if width == 120 else out.count("64: 0-63"))


@pytest.mark.parametrize("show", [models, clusters])
def test_presets_fit_eighty_columns_when_piped(show, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    show(None, False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("───" in line for line in lines) == 1  # one block: nothing is continued below


def test_a_name_wider_than_the_screen_stays_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    print_table(["name", "count"], [["x" * 50, 3]])
    assert "x" * 50 in capsys.readouterr().out


def test_markup_in_a_cell_is_text(capsys):
    print_table(["name"], [["[/b]"], ["[bold]x"]])
    out = capsys.readouterr().out
    assert "[/b]" in out
    assert "[bold]x" in out


def test_headings_give_way_before_text():
    heading = Column("a heading of words", ("12.5",), True)
    text = Column("layout", ("tp 8 pp 4 dp 2",), False)
    first = Column("", ("1",), True)
    ((_, one), (_, two), (_, three)) = blocks([first, heading, text], 26)[0]
    assert (one, two, three) == (1, 7, 14)
