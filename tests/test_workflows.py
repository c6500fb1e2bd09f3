"""What .github/workflows and .ci run is in the Makefile, for the versions of Python that pyproject names.

GitHub isn't here: the files are parsed, and `.ci/base` is run with torch and its company taken away.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from test_imports import EXTRAS

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSIONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)


def jobs() -> dict[str, dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    return {name: job for text in texts for name, job in yaml.safe_load(text)["jobs"].items()}


def commands() -> list[str]:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    listed = [line.removeprefix("exec ") for line in lines if line.startswith("exec ")]
    steps = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    return [*listed, *(line for step in steps for line in step.splitlines())]


def test_there_are_commands() -> None:
    assert {"make lint PYTHON=python", "make suite PYTHON=python", "make test", "bash .ci/base"} <= set(commands())


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_ci_is_one_of_the_makefile(command: str) -> None:
    if command.startswith("make "):
        assert re.search(rf"^{command.split()[1]}:", MAKEFILE, re.MULTILINE)
    else:  # `make base` does the same in an environment of its own
        words = command.removeprefix("python ").split()
        recipe = MAKEFILE.partition("\nbase:")[2].partition("\n\n")[0]
        assert all(word in recipe.split() for word in words), command


def test_the_versions_are_those_of_pyproject() -> None:
    requires = re.search(r'requires-python = ">=(3\.\d+)"', PYPROJECT)
    assert requires is not None
    assert requires[1] == VERSIONS[0]
    matrices = {name: job["strategy"]["matrix"] for name, job in jobs().items() if "strategy" in job}
    assert {name: matrix["python"] for name, matrix in matrices.items()} == {"base": VERSIONS, "test": VERSIONS}
    assert {name.partition("-")[0] for name in matrices["base"]["os"]} == {"ubuntu", "macos", "windows"}


def test_an_input_of_an_action_is_one_value() -> None:
    """GitHub refuses the whole file for a list there."""
    steps = [step for job in jobs().values() for step in job["steps"]]
    inputs = [value for step in steps for value in step.get("with", {}).values()]
    assert inputs
    assert all(isinstance(value, (str, int, bool)) for value in inputs)


def test_a_workflow_may_only_read() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_the_slowest_tests_are_shown() -> None:
    assert "--durations" in MAKEFILE.partition("PYTEST :=")[2].partition("\n")[0]


WITHOUT_EXTRAS = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash isn't here")
def test_what_the_base_package_does_in_ci(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS.format(blocked=EXTRAS))
    command = tmp_path / "scalewright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scalewright "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "base"],
        env=os.environ
        | {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    no_torch = [sys.executable, "-c", "import torch"]
    assert subprocess.run(no_torch, env={"PYTHONPATH": str(tmp_path)}, capture_output=True).returncode == 1
