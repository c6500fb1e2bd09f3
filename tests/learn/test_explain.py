"""Every entry of `explain`: its words, its number for two runs, its command, its picture; and that none is missing."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import scalewright
from scalewright.cli import build_app
from scalewright.cli.numbers import plain_numbers
from scalewright.learn.explain import pictures
from scalewright.learn.explain.answer import explain, listing
from scalewright.learn.explain.asked_run import Missing
from scalewright.learn.explain.compute import compute, draw, function_of
from scalewright.learn.explain.entries import Entry, find, fold, names, places, read_all
from scalewright.learn.explain.find import example, find_subject
from scalewright.learn.explain.subject import Subject
from scalewright.machine.doctor import TERMS as CHECKS
from scalewright.report.present.diagnosis import WORDS as CAUSES
from scalewright.report.present.explain import quantity
from scalewright.report.present.prediction import TERMS
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
DOCS = Path(__file__).resolve().parents[2] / "docs"
OTHER = {  # in nothing like the example
    "model": "deepseek-v3", "cluster": "gb200-nvl72", "data": {"train": "DATA", "seq_len": 2048},
    "layout": {"devices": 288, "tp": 4, "pp": 8, "ep": 4, "zero_stage": 1, "micro_batch": 1, "global_batch": 288,
               "precision": "bf16", "recompute": "full"},
}  # fmt: skip
SMALL = {  # a first run: next to nothing to divide
    "model": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
              "num_attention_heads": 2},
    "data": {"train": "DATA", "seq_len": 64}, "cluster": "t4",
}  # fmt: skip
ENTRIES = read_all()
MOST_WORDS, MOST_IN_TITLE = 110, 18


@pytest.fixture(scope="module")
def runs() -> tuple[Subject, ...]:
    question = Question(RunSpec.parse(OTHER), load_cluster(str(OTHER["cluster"])))
    return example(), Subject(question, "other"), Subject(Question(RunSpec.parse(SMALL), load_cluster("t4")), "small")


def sentences(text: str) -> list[str]:
    """Sentences end with a point before a blank or the end; no entry has an abbreviation with one."""
    return [part for part in re.split(r"(?<=[.?!])\s+", text.strip()) if part]


def test_every_word_of_the_field_s_courses_has_its_entry() -> None:
    assert len(WORDS["terms"]) > 200
    wrong = {word: term for word, term in WORDS["terms"].items() if find(word).term != term}
    assert not wrong


def test_every_reading_has_its_place() -> None:
    page = (DOCS / "reading.md").read_text(encoding="utf-8")
    assert len(WORDS["readings"]) > 60
    assert not [name for name, words in WORDS["readings"].items() if words not in page]


def test_what_reading_says_to_explain_exists() -> None:
    page = (DOCS / "reading.md").read_text(encoding="utf-8")
    asked = [name for name in re.findall(r"`explain ([^`]+)`", page) if not name.startswith("--")]
    assert len(asked) > 40
    assert not [name for name in asked if fold(name) not in names()]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.term)
def test_an_entry_s_words(entry: Entry) -> None:
    assert len(sentences(entry.text)) == 3, sentences(entry.text)
    assert 30 <= len(entry.text.split()) <= MOST_WORDS, len(entry.text.split())
    assert len(entry.title.split()) <= MOST_IN_TITLE
    assert entry.formula
    assert entry.source
    assert entry.read
    assert entry.see
    assert [find(name).term for name in entry.see] == list(entry.see)
    assert entry.term not in entry.see


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.term)
def test_an_entry_s_number_is_computed_for_the_run(entry: Entry, runs: tuple[Subject, ...]) -> None:
    """By a public function, and another number for another run but where the entry says why not."""
    function = function_of(entry.number)
    assert not any(part.startswith("_") for part in entry.number.function.split("."))
    assert function.__doc__
    values = [compute(entry.number, run) for run in runs]
    assert all(math.isfinite(value.number) for value in values)
    assert (values[0].number == values[1].number) == bool(entry.number.constant), [v.number for v in values]
    assert "{" not in values[0].of
    assert quantity(values[0].number, values[0].unit)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.picture], ids=lambda entry: entry.term)
def test_an_entry_s_picture_is_drawn(entry: Entry, runs: tuple[Subject, ...]) -> None:
    assert entry.picture is not None
    drawn = [draw(entry.picture, run) for run in runs]
    for picture in drawn[:2]:
        assert picture is not None
        assert picture["kind"] in ("bars", "table", "drawing")
        assert picture.get("rows") or picture["text"]
    assert json.dumps(drawn[0])


@pytest.fixture(scope="module")
def program() -> Any:
    return build_app()


@pytest.mark.parametrize("line", sorted({entry.command for entry in ENTRIES}))
def test_an_entry_s_command_exists(line: str, program: Any) -> None:
    """Its verb takes these words and flags; nothing is run."""
    name, *rest = words = shlex.split(line)
    assert name == "scalewright"
    command, rest = program, plain_numbers(program, rest)  # 15e12 for 15T
    while rest and (member := getattr(command, "commands", {}).get(rest[0])) is not None:
        command, rest = member, rest[1:]
    assert command.name == words[len(words) - len(rest) - 1]
    command.make_context(line, list(rest))


def test_names_lead_to_one_entry() -> None:
    folded = [key for place in places() for key in {fold(name) for name in (place.term, *place.aliases)}]
    assert len(folded) == len(set(folded)) == len(names())


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("gradient checkpointing", "activation recomputation"), ("Gradient-Checkpointing", "activation recomputation"),
        ("KV caches", "KV cache"), ("bubble", "pipeline bubble"), ("allreduce", "all-reduce"), ("warps", "warp"),
        ("Tensor Parallelism", "tensor parallel"), ("zero-3", "ZeRO"), ("micro batches", "micro-batch"),
        ("FLOPs of training", "6 N D"),
    ],
)  # fmt: skip
def test_names_are_forgiven(name: str, term: str) -> None:
    assert find(name).term == term


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    for name, near in (("pipline bubble", "pipeline bubble"), ("norm", "normalization"), ("attenton", "attention")):
        with pytest.raises(UserError) as error:
            find(name)
        assert near in error.value.how, error.value.how
    with pytest.raises(UserError, match="no term"):
        find("  ")


def test_a_run_s_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a run file, a folder, the newest below ./runs, and plans; a plan's and a prediction's are the same."""
    monkeypatch.chdir(tmp_path)
    assert find_subject().question == example().question
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    keys = {**OTHER, "name": "mine"}
    (folder / "run.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    bubbles = [explain("bubble", run)["value"] for run in (None, "runs/mine", folder / "run.yaml")]
    assert len({value["number"] for value in bubbles}) == 1
    assert all("mine" in value["run"] for value in bubbles)
    assert bubbles[0]["number"] == pytest.approx(7 / (32 + 7))  # 8 stages, 288 sequences over 9 replicas
    assert explain("bubble", None)["value"]["of"] == "of a step under 1f1b with 8 stages and 32 micro-batches"


def test_a_plan_and_a_prediction_are_runs(tmp_path: Path) -> None:
    from scalewright.api import predict

    answer = predict("llama-3.2-1b", "dgx-h100", devices=16, tp=2, pp=4, seq_len=4096, global_batch=32, explain=False)
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer), encoding="utf-8")
    subject = find_subject(path)
    assert (subject.pp, subject.tp, subject.seq_len, subject.model_name) == (4, 2, 4096, "llama-3.2-1b")
    assert subject.predicted_step_s == pytest.approx(answer["step_time_s"]["p50"], rel=1e-6)  # the same prices
    path.write_text(json.dumps({"best": [answer], "run": {**OTHER}}), encoding="utf-8")
    assert find_subject(path).model_name == "deepseek-v3"
    with pytest.raises(UserError, match="no such file"):
        find_subject(tmp_path / "none.yaml")


def test_a_run_without_the_part_is_asked_as_if_it_had_it() -> None:
    changed = example().assuming({"pp": 4, "moe": "mixtral-8x7b"})
    assert changed.pp == 4
    assert changed.experts == 8
    assert changed.layout.dp == 2
    assert len(changed.notes) == 2
    assert example().assuming({"dp": 2}).notes == ()
    assert compute(find("bubble").entry().number, example()).of.endswith("if pp were 4")


def test_what_a_machine_lacks_is_the_example_s() -> None:
    run = RunSpec.parse({**OTHER, "model": "llama-3.2-1b", "layout": {"devices": 1}, "cluster": "t4"})
    single = Subject(Question(run, load_cluster("t4")), "one T4")
    with pytest.raises(Missing):
        single.quantity("fp8_peak")
    value = compute(find("fp8").entry().number, single)
    assert "your run has no fp8 peak" in value.run


def test_the_list_has_every_entry() -> None:
    rows = listing()["terms"]
    assert len(rows) == len(ENTRIES) > 250
    assert [row["title"] for row in rows] == [entry.title for entry in ENTRIES]
    for page in (DOCS.parent / "README.md", DOCS / "README.md"):
        assert f"{len(ENTRIES)} words" in page.read_text(encoding="utf-8")


def test_the_ring_s_picture_sums_and_hands_round() -> None:
    """Followed step by step: each rank adds what comes to what it has, then keeps what comes."""
    rows = pictures.ring_steps(8)["rows"]
    ranks = len(rows)
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # whose numbers are in each chunk
    for step in range(2 * (ranks - 1)):
        sent = [int(row[1 + step].removeprefix("chunk ")) for row in rows]
        moved = [(rank, sent[rank - 1], set(held[rank - 1][sent[rank - 1]])) for rank in range(ranks)]
        for rank, chunk, whose in moved:
            held[rank][chunk] = whose if step >= ranks - 1 else held[rank][chunk] | whose
    assert all(chunk == set(range(ranks)) for rank in held for chunk in rank)


def test_words_behind_answers_have_entries() -> None:
    for cause in CAUSES:
        assert find(cause)
    for term in (*TERMS.values(), *CHECKS.values()):
        assert find(term).term == term


def test_every_key_of_a_layout_is_explained() -> None:
    assert not [key for key in Layout.model_fields if fold(key) not in names()]


def test_python_s_answer_prints_as_the_command_does() -> None:
    answer = scalewright.explain("ZeRO")
    assert str(answer).startswith("ZeRO: data parallelism")
    assert "ZeRO-3" in answer._repr_html_()


def test_the_glossary_is_made_from_the_entries() -> None:
    page = DOCS / "glossary.md"
    assert page.read_text(encoding="utf-8") == glossary(), "python tests/learn/test_explain.py writes it"


def glossary() -> str:
    """The page: each term, what it is in a line, and what pages don't call it."""
    rows = sorted(ENTRIES, key=lambda entry: entry.term.lower())
    table = [f"| {entry.term} | {entry.title} | {entry.instead_of} |" for entry in rows]
    head = """# Glossary

[All pages](README.md)

One term for one thing, in commands, pages and docs. `scalewright explain TERM` has three sentences on each, its
formula, the number for your own run and what to read; it knows other names, too. This page is made from the same
entries (`tests/learn/test_explain.py`); a test looks for the words in the last column (`tests/test_words.py`).

<!-- run -->
```sh
scalewright explain pipeline bubble
scalewright explain --list
```

| term | meaning | not |
| --- | --- | --- |
"""
    return head + "\n".join(table) + "\n"


if __name__ == "__main__":
    (DOCS / "glossary.md").write_text(glossary(), encoding="utf-8")
