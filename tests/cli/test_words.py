"""Words for what is named otherwise here, or isn't here: what they name is there; spelling is for misspelling alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scalewright.cli import build_app
from scalewright.cli.words import like_option, table

ROOT: Any = build_app()
TABLE = {kind: table(kind) for kind in ("commands", "options")}
OPTIONS = {
    name: {o for p in command.params for o in p.opts if o.startswith("--")} for name, command in ROOT.commands.items()
}


@pytest.mark.parametrize("word", sorted(TABLE["commands"]))
def test_a_word_names_commands_that_are_here(word: str) -> None:
    text = TABLE["commands"][word]
    assert word not in ROOT.commands
    for quoted in re.findall("`([^`]+)`", text):
        first, *others = quoted.removeprefix("scalewright ").split()
        if first.endswith(":") or first.startswith("--"):  # a run file's key, the program's own flag
            continue
        assert first in ROOT.commands, quoted
        flags = {other for other in others if other.startswith("--") and len(other) > 2}
        assert flags <= OPTIONS[first], quoted


def test_an_option_s_words_are_options_somewhere() -> None:
    known = set().union(*OPTIONS.values())
    for word, entry in TABLE["options"].items():
        names = [entry["needs"]] if isinstance(entry, dict) else [name.split()[0] for name in entry]
        assert set(names) <= known, word


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cost"], "no command 'cost' (scalewright): `budget --params 8B"),
        (["Optimize"], "no command 'Optimize' (scalewright): `plan` searches all layouts"),
        (["plan", "m", "--days", "3"], "unknown option --days (scalewright plan): days, device-hours and money come"),
        (["predict", "m", "--gpu_hours", "3"], "--gpu_hours (scalewright predict): days, device-hours"),
        (["plan", "m", "--gpus", "8"], "did you mean --devices or --nodes?"),
        (["plan", "m", "--tp", "8"], "did you mean --fix tp=8?"),
        (["predict", "m", "--zero", "1"], "did you mean --zero-stage?"),
        (["plan", "m", "--mbs", "1"], "did you mean --fix micro_batch=1?"),
        (["accept", "r.yaml", "--days", "2"], "a run file's keys have no dashes: layout.tp=2"),
        (["train", "r.yaml", "--lr", "1"], "a run file's keys have no dashes: layout.tp=2"),
        (["presets", "budget"], "unknown command 'budget' (scalewright presets)"),
        (["zzz"], "unknown command 'zzz' (scalewright): `scalewright --help` lists them all"),
    ],
)
def test_a_word_leads_to_what_does_it(call_cli: Any, words: list[str], line: str) -> None:
    answer = call_cli(*words)
    assert (answer.code, line in answer.error) == (2, True), answer.error


@pytest.mark.parametrize("word", ["dats", "xnodes", "tokns", "device", "precison"])
def test_spelling_is_for_misspelling(word: str) -> None:
    near = like_option(f"--{word}", OPTIONS["plan"])
    assert near is not None
    assert near.startswith("did you mean --")


def test_chance_is_no_neighbour() -> None:
    assert like_option("--lunch", OPTIONS["plan"]) is None
