"""This process's connections to other ranks, cut from any thread: whoever waits in them fails at once, here and there.

    A waits for B, B for C, and C has died       B's wait ends, A's only when B has left its groups: one after the other
    all cut their own when they hear of C        every wait ends, also of messages that C had no part in

Gloo can't abort what is under way (torch 2.13: `ProcessGroup.abort` of it does nothing), and ends a group only once
nothing runs in it. Its sockets are those that a process opened while it met the others. NCCL's groups are aborted when
they are left (`leave_world`).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress


def connections() -> frozenset[int]:
    """This process's sockets, by the numbers that the kernel gives them; none where it can't be known."""
    return frozenset(number for _, number in _sockets())


def cut(numbers: Collection[int]) -> None:
    """Shuts those of them down that lead to another process by TCP."""
    for descriptor, number in _sockets():
        if number in numbers:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # raises for one that only listens, which Gloo would take for its end
                    connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[int, int]]:
    """(descriptor, number) of each."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir("/dev/fd")
    for name in names:
        with suppress(OSError, ValueError):
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                yield int(name), about.st_ino
