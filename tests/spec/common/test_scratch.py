"""Temporary folders that a killed process left: gone at the next start, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalewright.spec.common.scratch import scratch_folder

HOLDER = """
import sys, time
from scalewright.spec.common.scratch import scratch_folder
with scratch_folder("ranks") as folder:
    (folder / "store").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    hour_ago = time.time() - 3600
    os.utime(folder, (hour_ago, hour_ago))
    return process, folder


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, left = holder(tmp_path)
    alive, held = holder(tmp_path)
    others = [tmp_path / "scalewright-ranks-young", tmp_path / "scalewright-probe-other"]
    for folder in others:
        folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scalewright-ranks-link").symlink_to(tmp_path / "elsewhere")
    os.utime(others[1], (0, 0))
    os.utime(tmp_path / "scalewright-ranks-link", (0, 0), follow_symlinks=False)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with scratch_folder("ranks") as mine:
            names = {path.name for path in tmp_path.iterdir()}
        assert left.name not in names
        kept = {mine.name, held.name, "elsewhere", "scalewright-ranks-link", *(path.name for path in others)}
        assert names == kept
        assert not mine.exists()
    finally:
        alive.kill()
        alive.wait()
