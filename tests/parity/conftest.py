"""Collects what the matrix measured; `--save-parity FOLDER` writes it there as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.table import Line, markdown, save

LINES: list[Line] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Read only when this folder is named on the command line."""
    parser.addoption("--save-parity", metavar="FOLDER", help="write the matrix there as a dated table")


@pytest.fixture(scope="session")
def lines() -> list[Line]:
    """Where tests of the matrix put what they measured."""
    return LINES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the whole matrix's table, and saves it where that was asked for."""
    whole = [line for line in LINES if line.steps >= 10]
    if not whole:
        return
    terminalreporter.write_line("")
    terminalreporter.write_line(markdown(whole))
    folder = config.getoption("--save-parity", default=None)
    if folder:
        terminalreporter.write_line(f"saved in {save(whole, Path(folder))}")
