"""How large each folder of src/scalewright may be: a budget, so that growth is decided and not only noticed.

Counted are lines of code: no docstrings, comments or blank lines, so that an explanation costs nothing. When
a folder outgrows its number, take something out, or raise the number with the reason beside it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "scalewright"
LINES, FILES = 125_400, 890  # of all kinds, in Python files; saves beside training and in stores: 2,400

BUDGET = {
    "accept": 470,
    "bench": 700,
    "budget": 1_290,  # laws, fixed point with a plan, serving in money, rent or buy, ladders, fits, spare nodes
    "chaos": 520,  # twelve kinds of faults, a run started again, its comparison; runs too short for one
    "checkpoint": 4_650,  # lint/: exports; boxes in few words; saves beside training; copies on other nodes (480)
    "cli": 4_230,  # lab; serve, chat; engines beside trainers; budget, goodput, inference, explore; price lists
    "data": 3_270,  # which fraction validates; names of mended files; tokens in a store; the words that made them
    "diagnose": 8_442,  # ending/, changes, idle time's verdicts; trainers' forms and facts are data
    "dry_run": 1_060,  # kinds of memory as a plan has them
    "emit": 9_775,  # serving/: six engines, another's limits, a GGUF file; bash/: scripts as bash reads them, bounded
    "evaluate": 210,
    "explore": 520,  # a page, live and in a file; money, energy and the trainer
    "goodput": 710,  # every second of all attempts in ten parts, as stretches of time
    "inference": 2_200,  # engines, devices, weights that go together; a launch line's needs; rows: 400; rounds
    "launch": 4_345,  # ranks that died, nodes that go, workers that outlive others: 200; whose port; stages of DVC: 140
    "learn": 3_005,  # lab/: sixteen experiments, bench, verdicts (1,560); explain/: quantities by name, pictures
    "machine": 1_650,  # words behind findings; rates that agree, and none on a loaded machine
    "model": 2_220,  # a start without torch's compiler
    "parallel": 3_500,  # a name for each meeting, connections that are cut; FSDP is imported where it is used
    "parity": 790,
    "plan": 7_895,  # a layout alone; money, energy, failures, spares; releases, networks, precisions; bounds of groups
    "report": 5_060,  # a lab's plots; a run's wall time; the page about serving; budget, goodput, inference as blocks
    "serve": 2_960,  # an engine: blocks, schedule, pages, draws, guesses; OpenAI's API, its errors, a page before it
    "spec": 7_460,  # a server's schedule; chats; families; networks; all mistakes; prices; what our processes import
    "track": 1_250,  # a line before silence; lines copied now, on the disk later; CSV for DVC
    "train": 7_995,  # restarts, failures that come back (400), ranks that go on without others (540); copies compared
    "storage": 320,  # stores by URL, their errors in words; copies on this node
    "": 410,  # budget, goodput, inference, each with its market; an own optimizer priced
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
