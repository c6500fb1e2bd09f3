"""The comparisons are scripts beside the package: their helpers are found from their folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "comparisons"
sys.path.insert(0, str(SCRIPTS))


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs a comparison as a user does, from a checkout without an installation; its JSON and its text."""

    def run(name: str, *arguments: object, timeout: float = 240) -> tuple[dict[str, Any], str]:
        out = tmp_path / "results"
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / name), *map(str, arguments), "--out", str(out)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        (data,), (text,) = out.glob("*.json"), out.glob("*.md")
        return json.loads(data.read_text()), text.read_text()

    return run
