"""Imported by the fork server alone (launch/local.py): it outlives SIGTERM; its children get it.

Slurm and systemd send SIGTERM, Slurm USR1 and USR2, and a closed terminal HUP, to every process of a job. The
fork server reports how workers end; if it died, all of them would count as dead while they save.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from scalewright.launch.stop import STOP_SIGNALS


def outlive_signals() -> None:
    """Blocks them here, and unblocks them in every process forked from here: none is lost on the way.

    What was imported is frozen before a fork: a worker's collector would write to, and so copy, all of it.
    A worker's own forks freeze nothing: it has garbage, which would stay.
    """
    server = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    os.register_at_fork(before=lambda: gc.freeze() if os.getpid() == server else None, after_in_child=_listen)


def _listen() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    outlive_signals()
