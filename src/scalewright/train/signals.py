"""Graceful shutdown: whatever asks a rank to stop, the loop agrees on a step, saves and ends.

SIGTERM, USR1, USR2, HUP, one Ctrl-C     any rank; a second Ctrl-C ends it at once
the end of torchrun, mpirun or srun      any rank: what started it has gone, and left it behind
a file STOP in out_dir, a time limit     rank 0 looks at these; the file goes when the run has saved

A signal from the first check of a run to its last save:

    checks, reads data    meets the others           builds, steps, validates, saves      after the last step
    Stopped, at once      the process leaves, 75     noted: the ranks agree to stop       the run is finished
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from scalewright.launch.stop import EARLY, heard_signals
from scalewright.spec.errors import Stopped

LOOK_S = 1.0  # between looks at the file: on a shared file system each may take a millisecond


class _AtOnceError(BaseException):
    """Ends this process's work. After some KeyboardInterrupts Python ends itself by SIGINT, whatever its exit code."""


class StopRequest:
    """Whether something asked this process to stop; outside the main thread no handler can be set.

    `last`: this process ends with the run, as a local worker does; a signal that comes after the loop is ignored then,
    where it would kill a worker that has saved. `alone`: nobody waits for this process yet, so that a signal ends it at
    once, until `joins`. `watch` names what else asks.
    """

    def __init__(self, *, last: bool = False, alone: bool = False) -> None:
        self.cause = ""  # in words, of this process's own
        self.signalled = False
        self._last, self._alone, self._parent = last, alone, os.getppid()
        self.watch()
        self._look_again = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in heard_signals():
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for number, handler in self._before.items():
            ends = self._last and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ends else handler)
        if isinstance(error, _AtOnceError):
            raise Stopped(f"{EARLY} ({self.cause})") from None

    def watch(self, file: Path | None = None, save_at: float | None = None, starter: str | None = None) -> None:
        """What asks beside signals: a file, a time (seconds since 1970), and the end of the `starter` (its name), this
        process's parent, which waits for its ranks."""
        self._file, self._save_at, self._starter = file, save_at, starter

    @contextmanager
    def joins(self, *, tell: bool, starter: str | None = None) -> Iterator[None]:
        """While this process meets others, outside Python and perhaps for minutes: a signal ends it from a
        thread, and so does the end of the `starter` that waits for it. From then on all ranks stop together. `tell`:
        with a line on stderr."""
        if self._before and self._alone:
            ours, theirs = os.pipe()
            os.set_blocking(theirs, False)
            thread = threading.Thread(target=_leave_at_signal, args=(ours, list(self._before), tell), daemon=True)
            thread.start()
            met = threading.Event()
            if starter is not None:
                threading.Thread(target=_leave_with, args=(starter, self._parent, met, tell), daemon=True).start()
            earlier = signal.set_wakeup_fd(theirs)
            try:
                yield
            finally:
                met.set()
                signal.set_wakeup_fd(earlier)
                os.close(theirs)
                thread.join()
                os.close(ours)
        else:
            yield
        self._alone = False

    @property
    def asked(self) -> bool:
        """Whether to stop; asked once a step."""
        if not self.cause and self._save_at is not None and time.time() >= self._save_at:
            self.cause = "time limit"
        if not self.cause and self._starter is not None and os.getppid() != self._parent:
            self.cause = f"{self._starter} has gone"
        if not self.cause and self._file is not None and time.monotonic() >= self._look_again:
            self._look_again = time.monotonic() + LOOK_S
            if self._file.is_file():  # a folder of that name couldn't be taken away again
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
        twice = bool(self.cause) and number == signal.SIGINT
        first, self.signalled = not self.signalled, True
        self.cause = self.cause or signal.Signals(number).name
        if twice:
            raise KeyboardInterrupt
        if self._alone and first:
            raise _AtOnceError


def _leave_at_signal(pipe: int, numbers: list[int], tell: bool) -> None:
    """Reads the numbers of signals until the pipe's other end is closed."""
    while number := os.read(pipe, 1):
        if number[0] in numbers:
            _leave(signal.Signals(number[0]).name, tell)


def _leave_with(starter: str, parent: int, met: threading.Event, tell: bool) -> None:
    """Looks whether what started the ranks is there until they have met: they'd wait for a store that has gone."""
    while not met.wait(LOOK_S):
        if os.getppid() != parent:
            _leave(f"{starter} has gone", tell)


def _leave(cause: str, tell: bool) -> None:
    if tell:
        with suppress(OSError, ValueError):
            print(f"{EARLY} ({cause})", file=sys.stderr, flush=True)
    os._exit(Stopped.exit_code)
