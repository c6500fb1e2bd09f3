"""The own parsers of Megatron-LM, Megatron-Bridge and torchtitan take what is written, not a wrong world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = {"megatron": "megatron.training", "megatron-bridge": "megatron.bridge", "torchtitan": "torchtitan"}


def is_here(name: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("trainer", HERE)
def test_its_own_parser_takes_thirty_random_runs(trainer: str, tmp_path: Path) -> None:
    if not is_here(HERE[trainer]):
        pytest.skip(f"{HERE[trainer]} is not installed: comparisons/harness/parsers tells how it is had")
    arguments = ["--count", "30", "--no-presets", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "comparisons" / "their_parsers.py"), trainer, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (result,) = tmp_path.glob("*.json")
    data = json.loads(result.read_text(encoding="utf-8"))
    assert [row["reason"] for row in data["random runs"] if row["outcome"] != "accepted"] == []
    assert data["control"]  # a run whose sizes don't make its world is refused
