"""One JSON document on stdout, whatever libraries and children print meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys

from scalewright.cli.output import only_answer, print_json, working
from scalewright.cli.terminal import print_table


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


def test_a_columns_name_can_t_move_the_cursor(capsys):
    from scalewright.spec.common.formatting import printable

    print_table(["setting", "run \x9b2J\u202e\x1b]0;x\x07"], [["lr", "1"]])
    out = capsys.readouterr().out
    assert out == printable(out)
    assert "run " in out
