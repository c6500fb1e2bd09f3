"""A line on stderr wherever a command would be silent for long: what it is at, and since when.

    with Heartbeat("reading the checkpoint") as heart:
        ...                                  8 s without a word ──► reading the checkpoint: 8 s so far
        heart.now("building the model")      another text; "" where others write: no line

A terminal that shows a moving display (`cli/output.py`, `track/console.py`) needs none of this.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scalewright.spec.common.formatting import printable

SILENT_S = 8.0  # of 10 s at most: a busy machine is late


class Heartbeat:
    """Writes a line after every `every_s` seconds in which `heard` wasn't called; a context manager.

    `line` makes the text of the seconds since `now`; "" is no line. `enabled` false: it does nothing.
    """

    def __init__(
        self, what: str = "", *, enabled: bool = True, every_s: float = SILENT_S,
        line: Callable[[float], str] | None = None, write: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.what, self._every_s, self._enabled = what, every_s, enabled
        self._line, self._write = line or self._so_far, write or _to_stderr
        self._end = threading.Event()
        self._began = self._heard = time.monotonic()

    def __enter__(self) -> Heartbeat:
        self._heard = time.monotonic() - self._every_s / 5  # what came before, loading at least, was silent too
        if self._enabled:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()

    def now(self, what: str) -> None:
        """Something else is under way, from now on."""
        self.what, self._began = what, time.monotonic()

    def heard(self) -> None:
        """The user has just been shown something else."""
        self._heard = time.monotonic()

    def _so_far(self, seconds: float) -> str:
        return f"{self.what}: {seconds:,.0f} s so far" if self.what else ""

    def _beat(self) -> None:
        while not self._end.wait(max(0.0, self._heard + self._every_s - time.monotonic())):
            moment = time.monotonic()
            if moment >= self._heard + self._every_s:
                self._heard = moment
                if text := self._line(moment - self._began):
                    self._write(text)


def _to_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # its reader has gone, and no command fails for that
        print(printable(text), file=sys.stderr, flush=True)
