"""The environment is plain data, and a machine that can't say something only leaves a gap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.track import environment as module
from scalewright.track.environment import environment, git_state


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_it_is_plain_data_about_this_process(tmp_path: Path) -> None:
    found = environment(
        ["scalewright", "train", "run.yaml"],
        {"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "WANDB_API_KEY": "secret", "HOME": "/home/x"},
        tmp_path,
    )
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == "scalewright train run.yaml"
    assert found["python"] == sys.version.split()[0]
    assert found["versions"]["scalewright"]
    assert found["variables"] == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}  # never a key or a home
    assert found["cpu"]["model"]
    assert found["cpu"]["threads"] >= found["cpu"]["usable_threads"] >= 1
    assert found["memory_gib"] > 0.1


def test_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None  # no repository
    git(tmp_path, "init", "-q", "-b", "work")
    assert git_state(tmp_path) is None  # no commit
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    state = git_state(tmp_path)
    assert state is not None
    assert (state["branch"], state["dirty"], len(state["commit"])) == ("work", False, 40)
    (tmp_path / "a.py").write_text("2\n")
    changed = git_state(tmp_path)
    assert changed is not None
    assert changed["dirty"] is True


def test_commands_that_are_missing_slow_or_failing_leave_gaps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert module._output(["no-such-command-anywhere"]) is None
    assert module._output([sys.executable, "-c", "raise SystemExit(3)"]) is None
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    assert module._output([sys.executable, "-c", "import time; time.sleep(30)"]) is None
    monkeypatch.setattr(module, "_output", lambda command: None)
    assert environment(folder=tmp_path)["git"] is None


def test_gpus_as_the_driver_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    listing = "NVIDIA H200, 143771, 570.86\nNVIDIA H200, [N/A], 570.86"
    monkeypatch.setattr(module, "_output", lambda command: listing)
    assert module.gpus() == [{"name": "NVIDIA H200", "memory_gib": 140.4, "driver": "570.86"}]


def test_it_does_not_import_torch() -> None:
    code = (
        "import sys; from scalewright.track.environment import environment; e = environment();"
        "assert e['torch'] is None and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
