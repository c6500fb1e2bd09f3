"""One JSON document on stdout, whatever libraries and children print meanwhile."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scalewright.cli.verbs
from scalewright.cli.output import only_answer, print_json, progress, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.heartbeat import Heartbeat


def test_only_the_answer_reaches_stdout(capfd):
    with only_answer(True):
        print("a library's chatter")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    print_json({"answer": 42})
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"answer": 42}
    assert "chatter" in captured.err
    assert "a child" in captured.err


def test_inactive_changes_nothing(capfd):
    with only_answer(False):
        print("seen")
    assert capfd.readouterr().out == "seen\n"


def test_numbers_that_json_lacks_become_null(capfd):
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": (True, None), 3: "x"})
    assert json.loads(capfd.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [True, None], "3": "x"}


def test_a_table_is_not_cut_when_piped(capfd):
    print_table(["name", "count"], [["x" * 150, 3], ["y", None]])
    out = capfd.readouterr().out
    assert "x" * 150 in out
    assert "None" not in out


def test_working_is_seen_on_a_terminal_only(monkeypatch, capsys):
    with working("thinking"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with working("thinking"):
        pass
    assert "thinking" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shows", "words"),
    [
        (lambda: _at("thinking"), "thinking: "),
        (lambda: _at("thinking", "writing"), "writing: "),
        (lambda: _searched(7, 90), "searching, 7 of 90: "),
        (lambda: _searched(1234, None), "searching, 1,234: "),
    ],
)
def test_a_pipe_gets_a_line_before_ten_seconds_are_silent(monkeypatch, capsys, shows, words):
    monkeypatch.setattr("scalewright.cli.output.Heartbeat", functools.partial(Heartbeat, every_s=0.03))
    shows()
    assert words in capsys.readouterr().err


def _at(what, *then):
    with working(what) as at:
        for text in then:
            at(text)
        time.sleep(0.2)


def _searched(done, total):
    with progress("searching") as tell:
        tell(done, total)
        time.sleep(0.2)


def test_a_rank_beside_the_first_is_quiet(monkeypatch, capsys):
    monkeypatch.setattr("scalewright.cli.output.Heartbeat", functools.partial(Heartbeat, every_s=0.03))
    with working("thinking", False):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


# Verbs that show nothing while they work, with the reason.
QUIET = {
    "train": "track/console.py, and a heartbeat before it", "demo": "a heartbeat around its steps",
    "generate": "a heartbeat, then the text", "prepare": "data/workers.py",
    "emit": "reads one file", "read": "reads one file", "launch": "writes a file, or shows a scheduler's own output",
    "explain": "computes one number", "record": "shows the recorded program's own output",
}  # fmt: skip


def test_every_verb_shows_what_it_is_at():
    folder = Path(scalewright.cli.verbs.__file__).parent
    shown = {
        path.stem
        for path in folder.glob("[a-z]*.py")
        if "working" in (text := path.read_text()) or "searching(" in text
    }
    assert {path.stem for path in folder.glob("[a-z]*.py")} - shown <= set(QUIET)


def test_a_columns_name_can_t_move_the_cursor(capsys):
    from scalewright.spec.common.formatting import printable

    print_table(["setting", "run \x9b2J\u202e\x1b]0;x\x07"], [["lr", "1"]])
    out = capsys.readouterr().out
    assert out == printable(out)
    assert "run " in out
