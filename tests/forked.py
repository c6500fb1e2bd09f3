"""The command line in a process forked from the image of ranks: all of a command but Python's start and its imports.

    start_cli    python -m scalewright ...     3 CPU seconds, twice that where it starts ranks
    fork_cli     its `main`, after a fork      0.1; the ranks that it starts are forked from the same server
    fork         a function, the same way

For tests of what a command does: its signals, exit code and output. Tests of the start itself take `start_cli`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

from runs import start_cli
from scalewright.launch.begin import prepare_workers
from scalewright.train.run import PRELOAD

OUT, ERR = "out", "err"


class Forked:
    """What tests use of `subprocess.Popen`, of a process that the fork server started."""

    def __init__(
        self, folder: Path, target: Callable[..., object], arguments: tuple[str, ...], environ: dict[str, str]
    ) -> None:
        prepare_workers(PRELOAD)
        self._written: tuple[str, str] | None = None
        self._streams = tempfile.TemporaryDirectory(prefix="forked-")
        place = Path(self._streams.name)
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_enter, args=(str(folder), place, target, arguments, environ), name="command"
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Negative for the signal that ended it, None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("scalewright", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to stdout and to stderr, once it has ended."""
        self.wait(timeout)
        if self._written is None:
            out, err = ((Path(self._streams.name) / name).read_text("utf-8") for name in (OUT, ERR))
            self._written = out, err
            self._streams.cleanup()
        return self._written

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_cli(folder: Path, *arguments: str, **environ: str) -> Forked | subprocess.Popen[str]:
    """`scalewright ...` in a process and a session of its own, not waited for; as `start_cli` where none can fork."""
    if sys.platform != "linux":
        return start_cli(folder, *arguments, **environ)
    return Forked(folder, _command, arguments, {**os.environ, "OMP_NUM_THREADS": "1", **environ})


def fork(folder: Path, target: Callable[..., object], *arguments: str, **environ: str) -> Forked:
    """A top-level function in a process and a session of its own; Linux alone."""
    return Forked(folder, target, arguments, {**os.environ, "OMP_NUM_THREADS": "1", **environ})


def _command(*arguments: str) -> None:
    from scalewright.__main__ import main

    sys.argv = ["scalewright", *arguments]
    sys.exit(main())


def _enter(
    folder: str, place: Path, target: Callable[..., object], arguments: tuple[str, ...], environ: dict[str, str]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    for number, name in ((1, OUT), (2, ERR)):
        file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, "utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, folder)
    _share_server()
    target(*arguments)


def _share_server() -> None:
    """This process's ranks are forked from the server that it was forked from: it doesn't start another one."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    assert server._forkserver_address is not None
    forkserver.ensure_running = server.ensure_running = lambda: None
