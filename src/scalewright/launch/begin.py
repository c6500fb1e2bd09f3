"""How processes of ranks begin: forked by a server that has imported torch already (Linux; 0.1 s each), or spawned.

prepare_workers ──► fork server, resource tracker      stop signals blocked, sockets with short names
begin_by        ──► multiprocessing's context          without_main: the caller's script isn't run again
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from typing import Any

from scalewright.launch.stop import STOP_SIGNALS
from scalewright.spec.common.own_imports import own_imports

SOCKET_BYTES, NAMED = 107, len("/pymp-12345678/listener-12345678")  # of a socket's path, and what is added to TMPDIR


def prepare_workers(preload: Sequence[str]) -> None:
    """Starts the fork server (Linux), which imports `preload` while the caller goes on with other work.

    It and the resource tracker are born with stop signals blocked (fork_server.py), and so outlive them.
    """
    begin_by(preload)
    if sys.platform == "linux":
        from multiprocessing import forkserver, resource_tracker

        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with own_imports(), _short_names():
                resource_tracker.ensure_running()  # which ends with some of them unblocked
                signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if server := forkserver._forkserver._forkserver_pid:  # type: ignore[attr-defined]
            atexit.unregister(_end_server)
            atexit.register(_end_server, server)


@contextmanager
def _short_names() -> Iterator[None]:
    """Sockets that are made meanwhile lie in /tmp where TMPDIR is too long for them, as those of workflows may be."""
    usual = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) + NAMED > SOCKET_BYTES and os.access("/tmp", os.W_OK | os.X_OK):
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = usual


def _end_server(server: int) -> None:
    """One that still imports when its caller ends, by a mistake in a run's data, would hold the caller's pipes open."""
    with suppress(OSError):
        if os.waitpid(server, os.WNOHANG) == (0, 0):
            os.kill(server, signal.SIGKILL)


def cores() -> int:
    """CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity mask
        return os.cpu_count() or 1


def begin_by(preload: Sequence[str]) -> Any:
    """multiprocessing's context: the fork server, which imports `preload`, on Linux, else spawn."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scalewright.launch.fork_server", *preload])
    return context


@contextmanager
def without_main() -> Iterator[None]:
    """Processes that are started meanwhile don't run the caller's script again, under any name.

    multiprocessing names it in the data that a new process prepares itself with (`spawn.prepare`).
    """
    original = spawn.get_preparation_data

    def trimmed(name: str) -> dict[str, object]:
        return {key: value for key, value in original(name).items() if not key.startswith("init_main")}

    spawn.get_preparation_data = trimmed
    try:
        yield
    finally:
        spawn.get_preparation_data = original
