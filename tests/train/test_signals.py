"""Requests to stop, from signals and from callbacks: each is made once, and a late one kills nobody."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scalewright.launch.stop import STOP_SIGNALS
from scalewright.spec.errors import Stopped
from scalewright.train import signals
from scalewright.train.callbacks import Callbacks
from scalewright.train.signals import StopRequest


def test_a_callback_asks_once() -> None:
    """Every further request would be a SIGTERM to workers that may have left their handler by then."""
    rows: list[int] = []

    def on_step(row: dict[str, Any]) -> str | None:
        rows.append(row["step"])
        return "stop" if row["step"] >= 2 else None

    callbacks = Callbacks(on_step, None, None)
    asked = [callbacks("train", {"kind": "train", "step": step}) for step in range(1, 5)]
    asked.append(callbacks("event", {"kind": "save", "step": 4}))
    assert asked == [False, True, False, False, False]
    assert rows == [1, 2, 3, 4]
    assert callbacks.stopped
    assert callbacks.result("out", 1.0)["step"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_what_a_signal_does_after_the_loop(name: str, last: bool) -> None:
    """A local worker ignores it from there to its end; other processes get their handlers back."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    number = signal.Signals[name]
    try:
        with StopRequest(last=last) as stop:
            assert not stop.asked
            signal.raise_signal(number)
            assert stop.asked
            assert stop.cause == name
        assert signal.getsignal(number) == (signal.SIG_IGN if last else before[number])
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_before_the_ranks_meet_a_signal_ends_it_at_once(name: str) -> None:
    with pytest.raises(Stopped, match=name), StopRequest(alone=True):
        signal.raise_signal(signal.Signals[name])
    with StopRequest(alone=True) as stop:
        with stop.joins(tell=False):
            pass
        signal.raise_signal(signal.Signals[name])  # from here on all ranks agree
        assert stop.asked


WAITS = """
import os, sys, threading
from scalewright.train.signals import StopRequest
with StopRequest(alone=True) as stop:
    print("here", flush=True)
    with stop.joins(tell=True, starter="torchrun"):
        threading.Event().wait(60)  # as in the meeting's C++, which looks at nothing
"""
STARTS = "import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); child.wait()"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells no process that its parent has ended")
def test_a_rank_that_waits_for_others_leaves_with_its_starter() -> None:
    begun = subprocess.Popen(
        [sys.executable, "-c", STARTS, WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert begun.stdout is not None
    assert begun.stderr is not None
    assert begun.stdout.readline() == "here\n"
    begun.kill()
    begun.wait()
    assert "torchrun has gone" in begun.stderr.read()  # ends with the child, which holds the pipe
    begun.stdout.close()
    begun.stderr.close()


def test_a_second_interrupt_ends_it_at_once() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def watching(**what: Any) -> StopRequest:
    stop = StopRequest()
    stop.watch(**what)
    return stop


def test_a_file_asks_and_goes_when_the_run_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "LOOK_S", 0.0)
    file = tmp_path / "STOP"
    stop = watching(file=file)
    assert not stop.asked
    file.mkdir()
    assert not stop.asked  # a folder: it would stay, and stop every start after its first step
    file.rmdir()
    file.touch()
    assert stop.asked
    assert stop.cause == "file STOP"
    stop.saved()
    assert not file.exists()
    assert stop.asked  # to the end of this run


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    """A step of milliseconds doesn't ask a shared file system each time."""
    stop = watching(file=tmp_path / "STOP")
    assert not stop.asked
    (tmp_path / "STOP").touch()
    assert not stop.asked


def test_a_starter_that_has_gone_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun died of a SIGUSR1, say: its ranks are another process's children now."""
    stop, alone = watching(starter="torchrun"), StopRequest()
    assert not stop.asked
    monkeypatch.setattr("os.getppid", lambda: 1)
    assert stop.asked
    assert stop.cause == "torchrun has gone"
    assert not alone.asked  # what a shell in the background started outlives it


def test_a_time_limit_asks() -> None:
    assert not watching(save_at=time.time() + 60).asked
    late = watching(save_at=time.time() - 1)
    assert late.asked
    assert late.cause == "time limit"
