"""What asks a run to save and leave: signals, and the end of the time that a scheduler gives it.

scheduler's end of the job, or this process's start + launch.time_limit
└── less launch.save_before_s ──► save_at: the moment from which the next step is the last one

Imported before anything heavy: until handlers are set, a signal ends a process with its own code.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalewright.spec.launch import LaunchSpec

# Slurm sends USR1 or USR2 where a script asks for it, and TERM before it takes nodes away; INT is Ctrl-C, HUP
# a terminal that was closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name)
)
STOP_FILE = "STOP"  # in out_dir
DEVICES_FILE = "DEVICES"  # there, too: how many local ranks an elastic run is to go on with; empty: all
JOB_ENDS = ("SLURM_JOB_END_TIME",)  # in seconds since 1970 (srun(1), from Slurm 22.05 on)
END_S = 120  # that Python may take to end
EARLY = "stopped while no step was made: the same command goes on"


def heard_signals() -> list[int]:
    """STOP_SIGNALS, without a SIGHUP that this process was started to ignore, as nohup does."""
    ignored = {number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
    return [number for number in STOP_SIGNALS if number not in ignored or number.name != "SIGHUP"]


def begin_anew() -> None:
    """Takes back what whoever started this process left: signals that are blocked, so that none would be heard, and
    ends of children that are ignored, so that each one's exit code would be 0."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def keep_exit_code() -> None:
    """Ignores signals once Python ends, which takes seconds after torch: it takes handlers back before that,
    and a signal would replace the exit code. Call it first: what is registered first is called last.

    An end that hangs, as in a library's destructor, is ended by SIGALRM after END_S: 142 (not on Windows).
    """

    def ignore() -> None:
        for number in heard_signals():
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(END_S)

    atexit.register(ignore)


@contextmanager
def stop_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Signals that ask to stop are given to `handle` meanwhile; outside the main thread they can't be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda received, frame: handle(received)) for number in heard_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_with_signals(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """A command's exit code. Signals that ask to stop are passed on to it, also those that came while it was
    started; a Ctrl-C reaches it by itself. Raises OSError where it can't be started."""
    import subprocess

    asked: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        asked.append(number)
        for process in processes:
            if number != signal.SIGINT:
                process.send_signal(number)

    with stop_signals(pass_on):
        processes.append(subprocess.Popen(list(command), env=env))
        for number in asked:
            if number != signal.SIGINT:
                processes[0].send_signal(number)
        return processes[0].wait()


def save_at(launch: LaunchSpec, environ: Mapping[str, str] | None = None, now: float | None = None) -> float | None:
    """When to save and leave, in seconds since 1970; None where no limit is set."""
    from scalewright.launch.starters import number_of

    environ = os.environ if environ is None else environ
    ends: float | None = number_of(environ, JOB_ENDS)
    if ends is None and launch.limit_s is not None:
        ends = (time.time() if now is None else now) + launch.limit_s
    return None if ends is None else ends - launch.save_before_s
