"""A user's modules with Python's own names: not to the processes that the command line starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.spec.common.own_imports import OURS, VARIABLE, own_imports, take_back


def starts(*words: str) -> bool:
    return subprocess.run([sys.executable, *words], capture_output=True, timeout=60).returncode == 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no such switch before 3.11")
def test_a_working_folder_is_looked_into_where_this_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('a user's')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with own_imports():
        assert starts("-c", "import queue")
    assert VARIABLE not in os.environ
    sys.path.insert(0, str(tmp_path))
    with own_imports():
        assert not starts("-c", "import queue")


def test_what_a_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with own_imports():
        take_back()
    assert os.environ[VARIABLE] == "1"
    monkeypatch.setenv(VARIABLE, OURS)
    take_back()
    assert VARIABLE not in os.environ
