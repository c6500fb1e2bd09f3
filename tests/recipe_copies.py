"""Tries edited copies of the repository: forks of one process that has imported what their tests import.

    copies.json: [{folder, aims, tests}] -> fork: aims run, then pytest of the tests -> [[exit code, output]] on stdout

Run by tests/test_recipes_followed.py as a program of its own: no module of the package may be imported before a fork,
since each copy has its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from typing import Any

import numpy  # noqa: F401 imported once, for all forks
import pydantic  # noqa: F401
import pytest
import yaml  # noqa: F401

with contextlib.suppress(ImportError):  # tests that need it are skipped where it isn't
    import torch  # noqa: F401

EXAMPLE = "throw-away"
SEARCH = (
    "tests/plan/test_frameworks.py::test_without_a_framework_what_train_runs_is_listed"  # 6 s, and has no new trainer
)


class ChosenItems:
    """Leaves out a test's cases of other entries, which an added entry can't change."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not hasattr(item, "callspec") or EXAMPLE in item.name]


def try_copy(folder: str, aims: list[str], tests: list[str]) -> tuple[int, str]:
    """What a contributor wanted of the copy, then its tests; 0 where all passed."""
    os.chdir(folder)
    sys.path[:0] = [f"{folder}/src", folder, f"{folder}/tests"]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of processes that tests start
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            for aim in aims:
                exec(aim, {})
        except Exception:
            traceback.print_exc()
            return 1, output.getvalue()
        code = pytest.main(
            ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--deselect", SEARCH, *tests],
            plugins=[ChosenItems()],
        )
    return int(code), output.getvalue()


def fork(copy: dict[str, Any]) -> tuple[int, str]:
    """The same in a process of its own."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            answer = try_copy(**copy)
        except BaseException:
            answer = 3, traceback.format_exc()
        with open(write, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(child, 0)
    code, output = json.loads(text or '[4, "ended without an answer"]')
    return code, output


if __name__ == "__main__":
    print(json.dumps([fork(copy) for copy in json.load(sys.stdin)]))
