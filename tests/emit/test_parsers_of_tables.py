"""litgpt's and MaxText's own parsers take what is written for random runs, and see a wrong world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["litgpt", "maxtext"])
def test_its_own_parser_takes_random_runs(trainer: str, tmp_path: Path) -> None:
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed: comparisons/harness/parsers tells how it is had")
    program = str(ROOT / "comparisons" / "their_parsers.py")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, program, trainer, "--count", "60", "--no-presets", "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (result,) = tmp_path.glob("*.json")
    data = json.loads(result.read_text(encoding="utf-8"))
    assert [row["reason"] for row in data["random runs"] if row["outcome"] == "refused"] == []
    assert any(row["outcome"] == "accepted" for row in data["random runs"])
    assert trainer == "litgpt" or data["control"]
