"""How large each folder of src/scalewright may be: a budget, so that growth is decided and not only noticed.

Counted are lines of code: no docstrings, comments or blank lines, so that an explanation costs nothing. When
a folder outgrows its number, take something out, or raise the number with the reason beside it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "scalewright"
LINES, FILES = 98_200, 640  # of all kinds, in Python files

BUDGET = {
    "accept": 540,
    "bench": 800,
    "checkpoint": 2_350,
    "cli": 3_700,
    "data": 3_600,
    "diagnose": 8_270,
    "dry_run": 1_170,  # what stands in for numbers, from model and parallel
    "emit": 8_050,  # with the arguments in logs, from diagnose
    "evaluate": 240,
    "launch": 4_415,  # which workers had begun, signals passed on once, an end that is bounded
    "learn": 480,
    "machine": 1_760,
    "model": 2_420,  # torch's private names, in one file
    "parallel": 3_800,
    "parity": 900,  # the control of islands, from train
    "plan": 7_420,  # the answers are records, too
    "report": 4_550,  # present/: what cli/ had of predict, plan, diagnose and score, once for all media
    "serve": 400,
    "spec": 7_360,  # applicable compression; one Finding, from machine, launch and accept
    "track": 1_240,
    "train": 7_400,
    "": 360,  # files beside the folders: the API, and a few more; answers of diagnose print themselves, too
}


def code_lines(text: str) -> int:
    """Lines of a Python file that aren't blank, a comment, or a string that stands by itself."""
    documentation: set[int] = set()
    in_strings: set[int] = set()  # a `#` at the start of such a line begins no comment
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                documentation.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, (ast.Constant, ast.JoinedStr)):
            in_strings.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    return sum(
        bool(line.strip())
        and number not in documentation
        and (number in in_strings or not line.lstrip().startswith("#"))
        for number, line in enumerate(text.splitlines(), 1)
    )


def python_files(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py") if folder else SOURCE.glob("*.py"))


def test_code_lines_leaves_out_what_explains() -> None:
    text = '"""A file."""\n\n# why\nX = """\n# text\n\n"""\n\n\ndef f():\n    """Does."""\n    return X  # it\n'
    assert code_lines(text) == 5  # X = """, # text, """, def, return


@pytest.mark.parametrize("folder", sorted(BUDGET))
def test_a_folder_keeps_to_its_budget(folder: str) -> None:
    lines = sum(code_lines(path.read_text(encoding="utf-8")) for path in python_files(folder))
    assert lines <= BUDGET[folder], f"{folder or 'the top'}: {lines} lines of code"


def test_every_folder_has_a_budget() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == set(BUDGET) - {""}


def test_the_whole_keeps_to_its_budget() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) <= FILES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES
