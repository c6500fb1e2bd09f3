"""The tests that have a GPU parameter, run by pytest in a process of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from harness.facts import ROOT
from harness.gpu.budget import Check

SIGNS = ("mark.gpu", "DEVICES")  # of a file that has such tests


def suite(check: Check) -> None:
    """Passed, failed and skipped tests by name. On a CPU one of them, to try this."""
    if importlib.util.find_spec("pytest") is None:
        check.note("skipped", "pytest is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # The project's pytest settings want a plugin that may not be here.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            f"--rootdir={ROOT}",
            "-p",
            "no:cacheprovider",
        ]
        chosen = ["-k", "cpu and late"] if check.device.type == "cpu" else ["-m", "gpu"]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        try:
            done = subprocess.run(
                [*command, *chosen, f"--junitxml={report}", *files()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=max(5.0, check.left),
            )
        except subprocess.TimeoutExpired:
            check.note("error", "pytest was stopped: out of time")
            return
        check.note("exit_code", done.returncode)
        check.note("tests", read(report) if report.exists() else done.stdout[-3000:] + done.stderr[-2000:])


def files() -> list[str]:
    """The test files with a GPU parameter: the others may want packages that aren't here."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(sign in text for sign in SIGNS):
            found.append(str(path.relative_to(ROOT)))
    return found


def read(report: Path) -> dict[str, Any]:
    """Outcome and seconds of every test in a JUnit file; the first lines of what went wrong."""
    found: dict[str, Any] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        entry: dict[str, Any] = {"outcome": "passed", "seconds": float(case.get("time", 0.0))}
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                entry["outcome"] = {"failure": "failed"}.get(child.tag, child.tag)
                entry["message"] = (child.get("message") or child.text or "")[:600]
        found[f"{case.get('classname')}::{case.get('name')}"] = entry
    return found
