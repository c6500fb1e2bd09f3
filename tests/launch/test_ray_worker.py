"""A worker's rank: its exit code is the worker's answer, and it leaves when its parent does. Needs no Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.launch.ray_worker import run_rank


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["missing.yaml"], 2)])
def test_an_end_that_another_start_wouldn_t_change_is_returned(tmp_path, monkeypatch, arguments, code):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run_rank({"folder": str(tmp_path), "arguments": arguments}) == code


def ending_with(code: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """`train` imports what it needs from the folder: here, something that ends it."""
    (folder / "typer.py").write_text(f"raise SystemExit({code})", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return run_rank({"folder": str(folder), "arguments": ["run.yaml"]})


def test_a_run_that_was_asked_to_stop_is_to_stay_stopped(tmp_path, monkeypatch):
    assert ending_with(75, tmp_path, monkeypatch) == 75


def test_any_other_end_is_raised(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="rank 0 left with exit code 3"):
        ending_with(3, tmp_path, monkeypatch)


WAIT = """
import sys
sys.modules["scalewright.cli"] = type(sys)("scalewright.cli")
sys.modules["scalewright.cli"].main = lambda: (print("up", flush=True), __import__("time").sleep(60))[1]
from scalewright.launch.exits_with_parent import main
main()
"""


def test_it_leaves_when_its_parent_s_end_of_the_pipe_closes():
    process = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=30) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
