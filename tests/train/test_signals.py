"""Requests to stop, from signals and from callbacks: each is made once, and a late one kills nobody."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from scalewright.train.record.callbacks import Callbacks
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
def test_what_a_signal_does_after_the_loop(last: bool) -> None:
    """A local worker ignores SIGTERM from there to its end; other processes get their handlers back."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with StopRequest(last=last) as stop:
            assert not stop.asked
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked
        assert signal.getsignal(signal.SIGTERM) == (signal.SIG_IGN if last else before[signal.SIGTERM])
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
