"""Collects what stops led to; `--save-stops FOLDER` writes it there as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.launch.stops_table import Line, save

sys.path.append(str(Path(__file__).resolve().parents[2] / "comparisons"))  # its pretend hosts

LINES: list[Line] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Read only when this folder is named on the command line."""
    parser.addoption("--save-stops", metavar="FOLDER", help="write what stops led to there as a dated table")
    parser.addoption("--save-moments", metavar="FOLDER", help="write what random moments led to there")
    parser.addoption("--moments", type=int, metavar="COUNT", help="random moments of each launcher", default=25)
    parser.addoption("--seed-of-moments", type=int, metavar="N", help="others than those of N 0", default=0)


@pytest.fixture(scope="session")
def lines() -> list[Line]:
    """Where tests of stops put what they saw."""
    return LINES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Saves the table where that was asked for, and prints it."""
    folder = config.getoption("--save-stops", default=None)
    if LINES and folder:
        page = save(LINES, Path(folder))
        terminalreporter.write_line(page.read_text())
        terminalreporter.write_line(f"saved in {page}")
