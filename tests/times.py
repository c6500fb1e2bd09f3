"""The order of `make test`, and where its time went: long files begin first, so that no core waits for one.

    durations.json      {"tests/parity/test_matrix.py": 96, ...}    seconds of the longest files, of a run
    --save-durations    writes it anew, from this run

A pytest plugin (`-p tests.times`), with xdist's `--no-loadscope-reorder`: that would sort files by their
number of tests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
LEAST_S = 5.0  # shorter files are not listed, and come last
SHOWN = 25


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--save-durations", action="store_true", help="keep this run's seconds for the order of later ones"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seconds: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


def file_of(test: str) -> str:
    """The file of a test's id, or of a warning's."""
    return test.partition("::")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    files = seconds_of_files(report for report in reports if isinstance(report, pytest.TestReport))
    for line in table(files) if files else []:
        terminalreporter.write_line(line)
    if config.getoption("--save-durations"):
        listed = {file: round(seconds) for file, seconds in files.most_common() if seconds >= LEAST_S}
        FILE.write_text(json.dumps(listed, indent=0) + "\n", encoding="utf-8")


def seconds_of_files(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Seconds by the clock of each file's tests, with what is set up and taken down for them."""
    files: Counter[str] = Counter()
    for report in reports:
        files[file_of(report.nodeid)] += report.duration  # type: ignore[assignment]
    return files


def table(files: Counter[str]) -> list[str]:
    """Folders, then the longest files."""
    folders: Counter[str] = Counter()
    for file, seconds in files.items():
        folders["/".join(file.split("/")[:2])] += seconds  # type: ignore[assignment]
    rows = [*folders.most_common(SHOWN), *files.most_common(SHOWN)]
    return [
        f"seconds of a worker, {sum(files.values()):.0f} in all:",
        *(f"{seconds:8.0f} {100 * seconds / max(sum(files.values()), 1):3.0f}% {name}" for name, seconds in rows),
    ]
