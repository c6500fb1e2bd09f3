"""Labs: their words and exercises, a verdict by load, an interrupted lab; each counted one runs in its short form."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import scalewright as sw
from scalewright.answers import Answer
from scalewright.cli import build_app
from scalewright.learn.explain.entries import fold, names
from scalewright.learn.lab import answer as answers
from scalewright.learn.lab.answer import BUSY, answer, check, conclude, listing, read_number
from scalewright.learn.lab.bench import Bench, clock, clock_in_turn
from scalewright.learn.lab.lab import find_lab, labs
from scalewright.learn.lab.outcome import Curve, Outcome, Value, bars, curves, lanes, table
from scalewright.report.answer import kind_of, write_answer
from scalewright.spec.errors import UserError

LABS = labs()
ALONE = ("positions", "numerics")  # one process, a few seconds, nothing by the clock
CORES = 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALEWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "labs"


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_its_words(lab: Any) -> None:
    assert lab.question.endswith("?")
    assert lab.exercise.question.endswith("?")
    assert callable(lab.experiment())
    assert all(fold(term) in names() for term in lab.terms)
    assert len(lab.theory.split()) <= 70
    commands = build_app().commands
    for line in lab.change:
        words = shlex.split(line, comments=True)
        if words[0] == "scalewright":
            assert words[1] in commands
    right = lab.exercise.answer()
    assert check(lab.name, repr(right))["right"]
    assert check(lab.name, repr(right * 1.004))["right"]
    assert not check(lab.name, repr(right * 1.1))["right"]


def test_names_and_numbers() -> None:
    assert find_lab("ALL REDUCE") is find_lab("all_reduce") is find_lab("all-reduce")
    assert find_lab("1") is LABS[0]
    with pytest.raises(UserError, match=r"unknown lab 'zeroo'.*did you mean 'zero'"):
        find_lab("zeroo")
    assert [row["lab"] for row in listing()["labs"]] == [lab.name for lab in LABS]


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("25%", "share", 0.25),
        ("2.5 GB", "B", 2.5e9),
        ("0.3 ms", "s", 3e-4),
        ("315us", "s", 3.15e-4),
        ("24B", "numbers", 24e9),
        ("24e9 numbers", "numbers", 24e9),
        ("1,024", "tokens", 1024),
        ("4 GiB", "B", 2**32),
        ("5", "times", 5),
    ],
)
def test_answers_as_people_write_them(text: str, unit: str, number: float) -> None:
    assert read_number(text, unit) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "many", "1.2.3"])
def test_no_number(text: str) -> None:
    with pytest.raises(UserError, match="is no number"):
        read_number(text, "s")


def timed(measured: float, expected: float = 1.0, *, timed: bool = True, **keys: Any) -> Value:
    return Value("a time", measured, expected, "s", "the formula", 0.1, "noise", timed=timed, **keys)


@pytest.mark.parametrize(
    ("values", "busy", "verdict"),
    [
        ([timed(1.05)], 0.0, "holds"),
        ([timed(1.05)], CORES, "holds"),  # others' work that did no harm
        ([timed(1.2)], 0.0, "differs"),
        ([timed(1.2)], BUSY * CORES + 0.1, "too busy"),
        ([timed(1.2), timed(1.2, timed=False)], CORES, "differs"),  # a count that is wrong is nobody else's
        ([timed(0.5, relation="at most"), timed(2.0, relation="at least")], 0.0, "holds"),
        ([timed(1.2, relation="at most")], 0.0, "differs"),
    ],
)
def test_a_verdict(values: list[Value], busy: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalewright.machine import processor

    monkeypatch.setattr(processor, "read_processor", lambda: type("Processor", (), {"logical_cores": CORES}))
    kind, sentence = conclude(values, busy)
    assert kind == verdict
    assert "the formula gives" in sentence
    assert ("cores busy" in sentence) == (verdict == "too busy")


def test_a_stopped_lab_goes_on(tmp_path: Path, cache: Path) -> None:
    measured: list[str] = []

    def bench() -> Bench:
        return Bench("zero", tmp_path, cache, train=sw.train, seed=3)

    def stop() -> None:
        raise KeyboardInterrupt

    first = bench()
    assert first.part("one", lambda: measured.append("one") or 1) == 1
    with pytest.raises(KeyboardInterrupt):
        first.part("two", stop)
    second = bench()
    assert second.part("one", lambda: measured.append("again")) == 1
    assert second.timed("two", lambda: {"a": 2}) == {"a": 2}
    assert bench().timed("two", stop) == {"a": 2}
    assert measured == ["one"]
    second.finished()
    assert bench().part("one", lambda: 5) == 5
    next(cache.glob("zero-3-*.json")).write_text("not JSON")
    assert bench().part("one", lambda: 6) == 6


def test_clocks() -> None:
    calls: list[str] = []
    assert clock(lambda: calls.append("a"), 3) >= 0
    assert set(clock_in_turn({"b": lambda: calls.append("b"), "c": lambda: calls.append("c")}, 2)) == {"b", "c"}
    assert "".join(calls) == "aaaa" + "bc" * 3


def drawn() -> dict[str, Any]:
    pictures = [
        curves(
            "lines",
            "bytes",
            "seconds",
            [Curve("it", [(1.0, 2.0), (10.0, 3.0)]), Curve("law", [(1.0, 0.0)], True)],
            ("B", "s"),
            log="xy",
        ),
        lanes("ranks", [("rank 0", [{"left": 0.0, "width": 0.5, "part": 1, "words": "forward of 0"}])], "1 s"),
        table("rows", ["a", "b"], [["x<y", 1]]),
        bars("bars", [("p", 1.0, "1 B")]),
    ]
    return answer(find_lab("zero"), Outcome([timed(1.05)], pictures, ["a note"]), 0.0, 1.0)


def test_a_page_and_its_words(tmp_path: Path, call_cli: Any) -> None:
    keys = drawn()
    assert kind_of(keys) == "Lab"
    text = write_answer(keys, tmp_path / "lab.html").read_text()
    assert text.count("<path") == 2
    assert "x&lt;y" in text
    assert 'title="it: 3 s at 10 B"' in text
    shown = Answer(keys).text(everything=True)
    for words in ("holds: 1 of 1", "rank 0 | FFF", "x<y", "on a thousand GPUs", "10.0%: noise"):
        assert words in shown
    (tmp_path / "lab.json").write_text(json.dumps(keys))
    assert call_cli("report", str(tmp_path / "lab.json"), "--force").code == 0


@pytest.mark.parametrize("name", ALONE)
def test_what_is_counted_holds(name: str) -> None:
    keys = sw.lab(name, short=True)
    assert keys["verdict"] == "holds", keys["conclusion"]
    assert len(keys["measured"]) == len(keys["expected"]) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [lab.name for lab in LABS if lab.name not in ALONE])
def test_every_lab(name: str) -> None:
    """What is counted is right on any machine; what is timed may differ on a busy one."""
    keys = sw.lab(name, short=True)
    for measured, expected in zip(keys["measured"], keys["expected"], strict=True):
        assert expected["holds"] or measured["timed"], (measured, expected)


def test_the_command(call_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "run_lab", lambda name, train, **_: drawn())
    page = tmp_path / "lab.html"
    told = call_cli("lab", "zero", "--out", str(page))
    assert (told.code, page.exists()) == (0, True)
    assert "holds: 1 of 1" in told.out
    assert json.loads(call_cli("lab", "zero", "--json").out)["verdict"] == "holds"
    assert call_cli("lab", "zero", "--out", str(tmp_path / "lab.pdf")).code == 2
    assert call_cli("lab").code == 2
    assert call_cli("lab", "zero", "--list").code == 2
    assert re.search(r"zero +ZeRO 0 to 3", call_cli("lab", "--list").out)
    assert len(json.loads(call_cli("lab", "--list", "--json").out)["labs"]) == len(LABS)
    assert call_cli("lab", "zero", "--check", "24e9").out == "right: 24B numbers\n"
    wrong = call_cli("lab", "zero", "--check", "16B")
    assert wrong.code == 1
    assert "24" not in wrong.out
    assert call_cli("lab", "zero", "--check", "16x").code == 2


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"labs need torch.*\[train\]"):
        sw.lab("zero")


def test_the_page_lists_all() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "labs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w-]+)` \| (.+?) \| (.+?) \| (\d+) s \|$", page, re.MULTILINE)
    assert rows == [(lab.name, lab.question, lab.formula, str(lab.seconds)) for lab in LABS]
