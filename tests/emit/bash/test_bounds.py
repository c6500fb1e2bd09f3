"""No script takes more than some seconds or megabytes to follow: each bomb here ends, with a note or an unknown value.

The limits are of steps and lengths, so that these tests are quick; nothing is ever run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scalewright.emit.bash import tree
from scalewright.emit.bash.script import read_script
from scalewright.spec.errors import UserError

ENDLESS, LONG, MANY, DEEP = "come to an end", "grows beyond", "braces give", "depth of 40"
BOMBS = {
    "for i in {1..999999999}; do :; done": MANY,
    "python b.py {1..9}{1..9}{1..9}{1..9}{1..9}{1..9}": MANY,
    "python b.py " + "{a,b}" * 30: MANY,
    "X=ab; while true; do X=$X$X; done": LONG,
    'A=(a b); while true; do A=("${A[@]}" "${A[@]}"); done': LONG,
    "while true; do A[0]+=${A[0]}xx; done": LONG,
    "declare -A M=([a]=b); while true; do M[a]+=${M[a]}; done": LONG,
    "X=ab; for ((;;)); do read -d '' X <<EOF\n$X$X\nEOF\ndone": LONG,
    "X=ab; while :; do printf -v X '%s%s' $X $X; Y=$X$X$X; done": LONG,
    'set -- a b; while :; do set -- "$@" "$@"; done': LONG,
    "echo ab > f; while :; do cat f f > g; cat g g > f; done": ENDLESS,
    "X='eval \"$X$X\"'; f() { eval f; eval f; }; f": DEEP,
    "f() { echo $(f)$(f); }; f": ENDLESS,
    ":(){ :|:& };:": DEEP,
    "f() { if [ -f /a ]; then f; else f; fi; }; f": ENDLESS,
    "set -- -a; while OPTIND=1; getopts a o; do :; done": ENDLESS,
    "while :; do eval Y$((i++))=1; done": ENDLESS,
    "echo 'source s; source s' > s; source s; source s": DEEP,
    "X=" + "a" * 190 + "; [[ $X == !(!(!(a*))) ]]": "pattern is too long",
}
UNKNOWN = (
    "$(printf '%999999999d' 1)", "$(printf '%.999999999f' 1)", "$(seq 1 99999999999)", "$((1%0))", "$(tr a-\uffff b)",
    "${X:?}", "$(echo 1/0 | bc)",
)  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:30])
def test_a_bomb_ends_with_a_note(bomb: str) -> None:
    began = time.process_time()
    script = read_script(f"python a.py\n{bomb}\n", "run.sh")
    assert script.shown(script.commands[0].words) == ["python", "a.py"]
    assert any(BOMBS[bomb] in note for note in script.result.notes)
    assert time.process_time() - began < 11  # SECONDS of shell.py, and a statement's own time


@pytest.mark.parametrize("word", UNKNOWN, ids=lambda word: word[:30])
def test_a_value_that_would_be_a_bomb_is_unknown(word: str) -> None:
    script = read_script(f"python a.py {word}")
    assert len(script.unknown(script.commands[-1].words)) == 1


@pytest.mark.parametrize(
    ("condition", "known"),
    [
        (f"[[ {'a' * 5000} =~ (a+)+b ]]", False),
        (f"[[ {'a' * 900} =~ a*a*a*a*a*a*b ]]", False),
        (f"[[ {'a' * 60} =~ ^((a|aa)*)*x ]]", False),
        (f"[[ {'a' * 1900} == {'*a' * 900}b ]]", True),
        (f"[[ {'a' * 190} == +(a|+(aa|*(a)))b ]]", True),
        ("[[ 70b =~ ^([0-9]+)b$ ]]", True),
    ],
)
def test_patterns_that_backtrack(condition: str, known: bool) -> None:
    began = time.process_time()
    script = read_script(f"if {condition}; then A=1; else A=2; fi; python a.py $A")
    assert (not script.unknown(script.commands[-1].words)) is known
    assert time.process_time() - began < 5


def test_what_is_sourced_is_a_file_of_some_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "big", "wb") as file:
        file.truncate(1 << 40)
    names = ("fifo", "zero", "circle", "folder", "big", "x" * 5000)
    text = "\n".join(f"source {name}; bash {name}" for name in names)
    script = read_script(f"{text}\npython a.py $(<fifo) < zero", "run.sh", tmp_path)
    assert len(script.result.notes) == len(names)
    assert script.shown(script.commands[-1].words) == ["python", "a.py", "$(<fifo)"]


@pytest.mark.parametrize("text", ["a\0b", "\ue0000\ue001", "\ue000999\ue001", "\ud800", "\x7f\x1b[31m"])
def test_characters_of_marks_are_no_marks(text: str) -> None:
    script = read_script(f"python a.py '{text}' $X")
    (mark,) = script.unknown(script.commands[0].words)
    assert mark.text == "$X"


@pytest.mark.parametrize(
    "text",
    [
        "python a.py $((" + "!" * 3000 + "1))",
        "if true; then " * 400 + "fi; " * 400,
        "python a.py " + "$(echo " * 300 + ")" * 300,
    ],
    ids=["arithmetic", "if", "$(...)"],
)
def test_statements_that_lie_too_deep(text: str) -> None:
    with pytest.raises(UserError, match=r"too deep|couldn't read"):
        read_script(text)


def test_a_parser_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "shfmt"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(tree, "_shfmt", lambda: str(slow))
    monkeypatch.setattr(tree, "SECONDS", 0.2)
    with pytest.raises(UserError, match="isn't parsed within"):
        read_script("python never-parsed-before.py")
    with pytest.raises(UserError, match="more than 1,000,000 characters"):
        read_script("#" * 1_000_001)
