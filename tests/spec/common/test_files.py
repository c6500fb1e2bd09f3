"""Files are whole or absent, links are replaced, and files of others are kept.

Temporary folders that a killed process left: gone at the next start, and nobody else's.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalewright.spec.common.files import is_signed, scratch_folder, write_signed, write_whole
from scalewright.spec.errors import UserError


@pytest.mark.skipif(sys.platform == "win32", reason="links and modes are Unix's")
def test_a_link_is_replaced_and_the_mode_is_the_umasks(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "outside").read_text() == "kept"
    assert (tmp_path / "file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "file").lstat().st_mode) == 0o644


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_an_edited_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.yaml"
    write_signed(path, "a: 1\nname: ä\n")
    write_signed(path, "a: 2\n")  # not edited: replaced
    assert is_signed(path)
    path.write_text(path.read_text().replace("a: 2", "a: 3"))
    with pytest.raises(UserError, match="--force"):
        write_signed(path, "a: 4\n")
    assert "a: 3" in path.read_text()
    write_signed(path, "a: 4\n", force=True)
    assert path.read_text().startswith("a: 4\n#")


HOLDER = """
import sys, time
from scalewright.spec.common.files import scratch_folder
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
