"""What a dry run of a large model takes: the script that measures it, and its promise, kept by one layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = "comparisons/dry_run_large.py"


def measured(root: Path, out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The script's JSON and its text, from a checkout without an installation."""
    done = subprocess.run(
        [sys.executable, str(root / SCRIPT), *arguments, "--out", str(out)],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (data,), (text,) = out.glob("*.json"), out.glob("*.md")
    return json.loads(data.read_text()), text.read_text()


def test_the_script(root: Path, tmp_path: Path) -> None:
    data, text = measured(root, tmp_path, "--quick")
    found = data["cases"]["quick"]
    assert sum(found["ranks_of_a_kind"]) == found["world"] == 8
    assert found["cpu_s"] > 0.5
    assert found["max_rss_bytes"] > 50e6
    assert f"| {found['cpu_s']:.0f} |" in text.replace("  ", "")
    assert data["finished"] >= data["started"]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_70b_on_512_ranks(root: Path, tmp_path: Path) -> None:
    """Under two minutes and 8 GB. CPU seconds, since others on a machine make the clock's longer."""
    data, _ = measured(root, tmp_path, "--cases", "dualpipev")
    found = data["cases"]["dualpipev"]
    assert found["layout"]["devices"] == sum(found["ranks_of_a_kind"]) == 512
    assert found["cpu_s"] < 120
    assert found["max_rss_bytes"] < 8e9
