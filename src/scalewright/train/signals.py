"""Graceful shutdown: whatever asks a rank to stop, the loop agrees on a step, saves and ends.

SIGTERM, SIGUSR1, SIGUSR2, one Ctrl-C    any rank; a second Ctrl-C ends it at once
the end of torchrun, mpirun or srun      any rank: what started it has gone, and left it behind
a file STOP in out_dir, a time limit     rank 0 looks at these; the file goes when the run has saved
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from scalewright.launch.stop import STOP_SIGNALS

LOOK_S = 1.0  # between looks at the file: on a shared file system each may take a millisecond


class StopRequest:
    """Whether something asked this process to stop; outside the main thread no handler can be set.

    `last`: this process ends with the run, as a local worker does; a signal that comes after the loop is
    ignored then, where it would kill a worker that has saved. `file` and `save_at` (seconds since 1970) ask,
    too, and so does the end of the `starter` (its name), this process's parent, which waits for its ranks.
    """

    def __init__(
        self,
        *,
        last: bool = False,
        file: Path | None = None,
        save_at: float | None = None,
        starter: str | None = None,
    ) -> None:
        self.cause = ""  # in words, of this process's own
        self._starter, self._parent = starter, os.getppid()
        self._file, self._save_at, self._last = file, save_at, last
        self._look_again = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            ends = self._last and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ends else handler)

    @property
    def asked(self) -> bool:
        """Whether to stop; asked once a step."""
        if not self.cause and self._save_at is not None and time.time() >= self._save_at:
            self.cause = "time limit"
        if not self.cause and self._starter is not None and os.getppid() != self._parent:
            self.cause = f"{self._starter} has gone"
        if not self.cause and self._file is not None and time.monotonic() >= self._look_again:
            self._look_again = time.monotonic() + LOOK_S
            if self._file.exists():
                self.cause = f"file {self._file.name}"
        return bool(self.cause)

    def saved(self) -> None:
        """The run has stopped as it was asked to. The file would stop its next start, too, and a signal to
        those that are slower to leave would end this process with another code."""
        self._last = True
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.cause and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.cause = self.cause or signal.Signals(number).name
