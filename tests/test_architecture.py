"""docs/architecture.md against the code: its paths, its folders, its arrows, and the order of its walks.

And the tests that `make quick` takes for a change here, from the same reading of all imports (seconds).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quick import Graph, graph, touched
from test_imports import ALLOWED

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "scalewright"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = {
    title: re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)
    for title, text in re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def test_every_path_exists() -> None:
    paths = set(re.findall(r"`([\w./]+\.py)`", PAGE))
    assert len(paths) > 70
    assert not {path for path in paths if not (SOURCE / path).is_file() and not (ROOT / path).is_file()} - {
        "__init__.py"
    }


def test_every_folder_has_a_paragraph() -> None:
    assert set(re.findall(r"^\*\*(\w+)\*\*:", PAGE, re.MULTILINE)) == set(ALLOWED)


def test_the_arrows_are_those_of_the_table() -> None:
    """Without those that others imply."""

    def reach(folder: str) -> set[str]:
        return ALLOWED[folder].union(*map(reach, ALLOWED[folder]))

    direct = {
        (folder, target)
        for folder, targets in ALLOWED.items()
        for target in targets
        if not any(target in reach(other) for other in targets - {target})
    }
    drawn = re.findall(r"^  (\w+) --> (.*)$", PAGE, re.MULTILINE)
    assert {(folder, target) for folder, targets in drawn for target in targets.split(" & ")} == direct


def test_there_are_five_walks() -> None:
    assert set(WALKS) == {"run → step", "batch → loss", "layout → price", "trace → verdict", "script → plan → script"}


@pytest.fixture(scope="module")
def edges() -> Graph:
    return graph()


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_follows_the_imports(edges: Graph, title: str) -> None:
    files = [f"src/scalewright/{path}" for path in WALKS[title]]
    lost = [
        file
        for number, file in enumerate(files)
        if number and not any(file in edges[earlier] for earlier in files[:number])
    ]
    assert not lost


def test_a_change_here_touches_the_tests_that_reach_it(edges: Graph) -> None:
    assert "tests/test_docs.py" in touched(["docs/moe.md"], edges)
    assert touched(["src/scalewright/train/muon.py"], edges)[1] == "tests/train/test_muon.py"
    by_name = touched(["src/scalewright/emit/colossalai.py"], edges)
    assert any(file.startswith("tests/emit/") for file in by_name)
    assert "tests/launch/test_detect.py" not in touched(["src/scalewright/plan/cost/links.py"], edges)
