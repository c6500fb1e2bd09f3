"""docs/deepspeed.md is typed from top to bottom, where DeepSpeed is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from runs import TOLERANCE, rows, worst
from test_docs import shell_blocks


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_the_page(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "scalewright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m scalewright "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    for block in shell_blocks("docs/deepspeed.md"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    control = rows(tmp_path / "runs" / "ours")
    for name in ("zero", "stages", "offloaded"):
        assert worst(rows(tmp_path / "runs" / name), control, "loss") < TOLERANCE
    config = json.loads((tmp_path / "runs" / "zero" / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 2
