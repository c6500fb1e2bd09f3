"""Who listens at a port of this machine, and the error of a program that finds it taken."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from typing import Any

from scalewright.spec.errors import UserError, shortened

# torch's "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE"; Python's "('127.0.0.1', 29500)".
IN_USE, NUMBER = ("EADDRINUSE", "address already in use"), re.compile(r"port:? (\d+)|', (\d+)\)")


def listener(port: int | None) -> str:
    """`process 4711 (python train.py)`; "" where nobody listens, or another user's program does."""
    with suppress(Exception):  # a system that doesn't show it, or a process that has just ended
        import psutil  # late: what it imports differs from system to system

        sockets: Any = psutil.net_connections("tcp")
        at = [each for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
        pid = next(each.pid for each in at if each.pid)
        return f"process {pid} ({shortened(' '.join(psutil.Process(pid).cmdline()), 80)})"
    return ""


def how_to_free(port: int | None, holder: str) -> str:
    """What to do about a port that is taken."""
    end, other = f"end what holds it (ss -ltnp 'sport = :{port}')", 29501 if port != 29501 else 29502
    end = f"end it (kill {holder.split()[1]})" if holder else end
    return f"{end}, or take another port: MASTER_PORT={other}, torchrun --master-port {other}"


def port_is_taken(error: BaseException) -> UserError | None:
    """The error of a port that is taken, from torch's or Python's; None for any other."""
    text = str(error)
    if getattr(error, "errno", None) != errno.EADDRINUSE and not any(words in text for words in IN_USE):
        return None
    match = NUMBER.search(text)
    port = int(match[1] or match[2]) if match else None
    holder = listener(port)
    what = f"port {port or 'of the rendezvous'} is taken" + (f" by {holder}" if holder else "")
    return UserError(what, "where the ranks meet", how_to_free(port, holder))
