"""When a command began: the start of its process, before imports that take seconds. A run's wall time counts from it.

process starts ── imports ── `note()` ── ... ── train() asks `begun()`: the process's start, once
a notebook or a script that calls train():       the moment of the call
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_noted: list[float] = []


def note() -> None:
    """Called by the command line: what begins now began with this process."""
    _noted[:] = [_process_start()]


def begun() -> float:
    """Seconds since 1970; a second call of the same process begins when it is made."""
    return _noted.pop() if _noted else time.time()


def _process_start() -> float:
    """By the kernel's clocks, to 10 ms (Linux); elsewhere now."""
    now = time.time()
    with suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return now - age if 0 <= age < 3600 else now
    return now
