"""The course's answers: each number is what the code beside it gives, and what its source prints.

**31.4** GB (`memory.model_states(7.5e9).total / 1e9`)     evaluated with the imports that docs/course.md shows
<!-- published: zero-7b5-n64 pos 1e9 -->                   the number before it, times 1e9, is that answer of
                                                           tests/truth/problems.yaml or published.yaml
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.truth.problems import UNITS, problems

from scalewright.cli.verbs import VERBS
from scalewright.learn.explain.entries import fold, names

DOCS = Path(__file__).resolve().parents[2] / "docs"
START = (DOCS / "course.md").read_text(encoding="utf-8")
TRACKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((DOCS / "course").glob("*.md"))}
NUMBER = r"\*\*([\d.,]+(?:e-?\d+)?%?)\*\*[^`*]{0,120}\(`([^`]+)`"
MARK = NUMBER + r"[^*]*?<!-- published: (\S+) (\S+) ?(\S*) -->"
ANSWERS = [(name, *match) for name, text in TRACKS.items() for match in re.findall(NUMBER, text)]
PUBLISHED = [(name, printed, *mark) for name, text in TRACKS.items() for printed, _, *mark in re.findall(MARK, text)]
STEPS = [(name, step) for name, text in TRACKS.items() for step in text.split("\n## ")[1:]]


@cache
def scope() -> dict[str, Any]:
    """What a reader has after the imports of the course's first page."""
    shown = re.search(r"```python\n(.*?)```", START, re.DOTALL)
    assert shown
    values: dict[str, Any] = {}
    exec(shown[1], values)
    return values


def read(printed: str) -> tuple[float, float]:
    """A printed number, and half of a unit of its last digit."""
    digits = printed.replace(",", "").removesuffix("%")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0) + (2 if printed.endswith("%") else 0)
    return float(digits) / (100 if printed.endswith("%") else 1), 0.5 * 10.0**-decimals


@pytest.mark.parametrize(("track", "printed", "code"), ANSWERS)
def test_an_answer_is_what_its_code_gives(track: str, printed: str, code: str) -> None:
    value, half = read(printed)
    assert eval(code, scope()) == pytest.approx(value, abs=1.0001 * half)  # it may end in a five


@pytest.mark.parametrize(("track", "printed", "problem", "key", "factor"), PUBLISHED)
def test_an_answer_is_what_its_source_prints(track: str, printed: str, problem: str, key: str, factor: str) -> None:
    more = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    source = next(row for row in (*more, *problems()) if row["id"] == problem)
    assert "disagreement" not in source
    answer, (value, half) = source["answers"][key], read(printed)
    given = 1.0 if printed.endswith("%") or answer["unit"] != "%" else UNITS["%"]
    # the source's tolerance, and what this page rounds
    close = pytest.approx(answer["value"] * given, rel=source["tolerance"] + half / value, abs=0)
    assert value * float(factor or 1) == close, source["source"]


def test_there_is_a_course() -> None:
    assert len(TRACKS) == 4
    assert len(STEPS) > 40
    assert len(ANSWERS) > 90
    assert len(PUBLISHED) > 40
    marks = sum(text.count("<!-- published:") for text in TRACKS.values())
    assert len(PUBLISHED) == marks, "a mark without a number before it"


@pytest.mark.parametrize(("track", "step"), STEPS, ids=lambda value: value.partition("\n")[0])
def test_a_step_is_read_done_asked_and_enlarged(track: str, step: str) -> None:
    words = ("Read", "Do", r"(?:Exercise|Asked)\.")
    parts = [*(rf"\*\*{word}\*\* " for word in words), "\n<details", r"\n\*\*On 1,000 GPUs\*\*"]
    found = [re.search(part, step) for part in parts]
    assert all(found), [part for part, match in zip(parts, found, strict=True) if not match]
    places = [match.start() for match in found if match]
    assert places == sorted(places)
    inside = step.partition("<summary>Answer</summary>")[2].partition("</details>")[0]
    assert re.search(NUMBER, inside)


def test_what_the_course_says_to_type_exists() -> None:
    text = " ".join((START + "".join(TRACKS.values())).split())
    terms = re.findall(r"`explain ([^`]+)`", text)
    assert len(terms) > 80
    assert not [term for term in terms if fold(term) not in names()]
    typed = set(re.findall(r"`scalewright (\w+)", text)) - {"explain"}
    assert typed <= {name for verbs in VERBS.values() for name in verbs}


NOTEBOOKS = runpy.run_path(str(DOCS.parent / ".ci" / "notebooks.py"))


@pytest.mark.parametrize("track", NOTEBOOKS["TRACKS"])
def test_a_notebook_is_its_page(track: str) -> None:
    text = (DOCS / "course" / f"{track}.ipynb").read_text(encoding="utf-8")
    assert text == NOTEBOOKS["written"](track), "python .ci/notebooks.py writes it"
    cells = json.loads(text)["cells"]
    code = [part for cell in cells if cell["cell_type"] == "code" for part in "".join(cell["source"]).split(",\n")]
    inside = re.findall(r"<details.*?</details>", TRACKS[track], re.DOTALL)
    assert set(code) >= {match for answer in inside for _, match in re.findall(NUMBER, answer)}


@pytest.mark.slow
@pytest.mark.parametrize("track", NOTEBOOKS["TRACKS"])
def test_a_notebook_runs(track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = nbformat.read(DOCS / "course" / f"{track}.ipynb", as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=280, resources={"metadata": {"path": tmp_path}}).execute()
    printed = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert len(printed) > 10
    assert not [output for output in printed if output.output_type == "error"]
    shell = [cell for cell in book.cells if cell.cell_type == "code" and cell.source.startswith("!")]
    assert all("a step" in str(cell.outputs) or "best" in str(cell.outputs) for cell in shell)


def test_the_first_page_counts_the_steps() -> None:
    counts = dict(re.findall(r"\| \[[^\]]+\]\(course/([\w-]+)\.md\) \| .*? \| (\d+) \|", START))
    assert {name: int(count) for name, count in counts.items()} == {
        name: text.count("\n## ") for name, text in TRACKS.items()
    }
