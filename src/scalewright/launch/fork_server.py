"""Imported by the fork server alone (launch/begin.py): it outlives SIGTERM; its children get it.

Slurm and systemd send SIGTERM, Slurm USR1 and USR2, and a closed terminal HUP, to every process of a job. The
fork server reports how workers end; if it died, all of them would count as dead while they save.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from multiprocessing import current_process
from types import FrameType

from scalewright.launch.stop import STOP_SIGNALS
from scalewright.spec.common.own_imports import take_back

WORKER = "scalewright-rank"  # how run_local's processes are named


def outlive_signals() -> None:
    """Blocks them here, and unblocks them in every process forked from here: none is lost on the way.

    Until a worker `can_answer` a SIGINT it dies of it: Python would print where its own start was.

    What was imported is frozen before a fork: a worker's collector would write to, and so copy, all of it.
    A worker's own forks freeze nothing: it has garbage, which would stay.
    """
    server = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, _interrupted)  # which multiprocessing gives back to the processes it forks
    os.register_at_fork(before=lambda: gc.freeze() if os.getpid() == server else None, after_in_child=_listen)


def is_forked() -> bool:
    """Whether this process is the fork server or comes from it, and so began with its imports frozen."""
    return any("multiprocessing.forkserver" in argument for argument in sys.orig_argv)


def _listen() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """A process that isn't one of run_local's, as of the caller's own pool, gets KeyboardInterrupt as everywhere."""
    if not current_process().name.startswith((WORKER, "MainProcess")):  # the server's own name until it is told
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def can_answer() -> None:
    """From here on a SIGINT raises KeyboardInterrupt in this worker."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_forked():
    outlive_signals()
    take_back()
