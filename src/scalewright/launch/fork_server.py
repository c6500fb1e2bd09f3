"""Imported by the fork server alone (launch/local.py): it outlives SIGTERM; its children get it.

Slurm and systemd send SIGTERM, and Slurm USR1 and USR2, to every process of a job. The fork server reports
how workers end; if it died, all of them would count as dead while they save.
"""

from __future__ import annotations

import os
import signal
import sys


def _sent() -> set[signal.Signals]:
    """What schedulers send to ask for an end."""
    return {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}


def outlive_signals() -> None:
    """Blocks them here, and unblocks them in every process forked from here: none is lost on the way."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _sent())
    os.register_at_fork(after_in_child=_listen)


def _listen() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _sent())


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    outlive_signals()
