"""Ray's driver is asked to stop while it trains. Needs no Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalewright.launch.ray_driver import fit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these signals")


class Trainer:
    """Trains until it sees the file, or for a while."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def fit(self) -> SimpleNamespace:
        for _ in range(200):
            if self.file.exists():
                return SimpleNamespace(return_value=75)
            time.sleep(0.02)
        return SimpleNamespace(return_value=0)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_a_signal_is_the_file_stop(tmp_path: Path, name: str) -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.Signals[name])).start()
    assert fit(Trainer(tmp_path / "out" / "STOP"), str(tmp_path / "out")) == 75
    assert not (tmp_path / "out" / "STOP").exists()


def test_a_file_of_the_user_s_stays_until_the_run_has_seen_it(tmp_path: Path) -> None:
    (tmp_path / "STOP").touch()
    assert fit(Trainer(tmp_path / "STOP"), str(tmp_path)) == 75
    assert (tmp_path / "STOP").exists()


def test_what_ray_raises_is_raised(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        fit(SimpleNamespace(fit=fail), str(tmp_path))


TWICE = """
import time, types
from scalewright.launch.ray_driver import fit
print("up", flush=True)
fit(types.SimpleNamespace(fit=lambda: time.sleep(60)), "out")
"""


def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", TWICE], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        assert process.wait(1) == 130
        assert not (tmp_path / "out" / "STOP").exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
