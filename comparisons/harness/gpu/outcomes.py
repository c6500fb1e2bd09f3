"""A plugin of pytest: runs the tests of a list in its order, writes each outcome when it is there.

It is told where by GPU_CHECK_TESTS and GPU_CHECK_OUTCOMES, since pytest loads it by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.gpu.store import end_with_parent

MESSAGE = 600  # characters of what went wrong
BROKEN = 3  # the exit code with which the process ends when its CUDA context is no use any more


class Outcomes:
    """The list, and the file of outcomes."""

    def __init__(self, names: Path, file: Path) -> None:
        self.names, self.file = names.read_text(encoding="utf-8").splitlines(), file
        self.reports: list[Any] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """The tests of the list alone, in its order."""
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self.names if name in by_name]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keeps the reports of a test: set-up, call, end."""
        self.reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Writes the outcome when all three are there."""
        self.reports.clear()
        result = yield
        failed = [report for report in self.reports if report.failed]
        skipped = [report for report in self.reports if report.skipped]
        worst = (failed or skipped or self.reports)[0]
        seconds = round(sum(report.duration for report in self.reports), 2)
        outcome = {"test": item.nodeid, "outcome": worst.outcome, "seconds": seconds}
        if failed or skipped:
            reason = worst.longrepr[2] if isinstance(worst.longrepr, tuple) else worst.longreprtext
            outcome["message"] = reason[-MESSAGE:]
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if failed and _context_is_broken():
            os._exit(BROKEN)
        return result


def pytest_configure(config: Any) -> None:
    """Starts it, with the marks of the project's settings, which aren't read here."""
    for name in ("slow", "gpu", "parity", "timeout"):
        config.addinivalue_line("markers", f"{name}: of the project")
    if "GPU_CHECK_TESTS" in os.environ:
        end_with_parent()
        names, file = (Path(os.environ[f"GPU_CHECK_{word}"]) for word in ("TESTS", "OUTCOMES"))
        config.pluginmanager.register(Outcomes(names, file))


def _context_is_broken() -> bool:
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
