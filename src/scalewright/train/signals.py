"""Graceful shutdown: after SIGTERM or one Ctrl-C the loop saves and ends; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Whether a signal asked this process to stop; outside the main thread no handler can be set.

    `last`: this process ends with the run, as a local worker does; a SIGTERM that comes after the loop is
    ignored then, where it would kill a worker that has saved.
    """

    def __init__(self, *, last: bool = False) -> None:
        self.asked = False
        self._last = last
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            ends = self._last and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if ends else handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
