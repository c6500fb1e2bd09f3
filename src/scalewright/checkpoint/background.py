"""A rank's side of its writer process (writer.py, memory/courier.py): started once, given one job at a time, asked
without waiting.

    start ─► begin(job) ─► poll() ... None, None, answer ─► begin(job) ─► ... ─► close

A writer that died, or that takes too long and is killed, answers with a `problem`; the next `begin` starts another.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from scalewright.checkpoint.writer import receive, send
from scalewright.spec.common.own_imports import own_imports


class Background:
    """The writer process of this rank, or another that takes jobs. One rank, one thread."""

    def __init__(self, module: str = "writer", listens: int | None = None) -> None:
        """`listens`: the descriptor of a socket that each process of `module` inherits."""
        self._module, self._listens = module, [] if listens is None else [listens]
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self.busy = False

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Starts the process, unless it runs. Raises OSError."""
        if self.pid is not None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        arguments = [*map(str, (theirs.fileno(), os.getpid(), *self._listens))]
        with theirs, own_imports():
            environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's library would start a thread for each core
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"scalewright.checkpoint.{self._module}", *arguments],
                pass_fds=[theirs.fileno(), *self._listens],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environ, start_new_session=True,
            )  # fmt: skip
        self._link = ours

    def begin(self, job: dict[str, Any], memory: Sequence[int]) -> None:
        """Gives it a job and the descriptors of its files' memory. Raises OSError when it can't be reached."""
        self.start()
        assert self._link is not None
        self.busy = True
        send(self._link, job, memory)

    def poll(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """The answer to the job, once there is one; {"problem": text} of a writer that has gone."""
        if self._link is None:
            return {"problem": "no writer runs"}
        if not select.select([self._link], [], [], wait_s)[0]:
            return None
        with suppress(OSError, ValueError):
            if (message := receive(self._link)) is not None:
                self.busy = False
                return message[0]
        return {"problem": f"the writer of the save has gone{self._end()}"}

    def _end(self) -> str:
        process = self._process
        self._process = None
        self.close()
        if process is None:
            return ""
        code = process.wait()
        return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"

    def kill(self) -> None:
        """Ends it at once; what it wrote is no checkpoint."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends it: it leaves when its socket closes. One that is still at a file leaves with this process."""
        if self._link is not None:
            self._link.close()
        self._link, self.busy = None, False
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
        self._process = None
