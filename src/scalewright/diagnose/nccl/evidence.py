"""Words of evidence in NCCL's lines: names, settings, and the line in which a problem was printed."""

from __future__ import annotations

from collections.abc import Collection

from scalewright.diagnose.nccl.log import Log

MOST_NAMES = 4


def names(some: Collection[str]) -> str:
    """`a, b, c, d and 3 more`.

    >>> names(["a", "b"]), names(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    first = [*some][:MOST_NAMES]
    rest = len(some) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")


def setting(log: Log, name: str, *values: str) -> str:
    """`NCCL_IB_DISABLE is set to 1` where a variable has one of the values (or any, if none is given)."""
    here = [value for value in log.environment.get(name, ()) if not values or value in values]
    if not here:
        return ""
    hosts = sorted(set().union(*(log.environment[name][value] for value in here)))
    return f"{name} is set to {names(here)}" + (f" on {names(hosts)}" if hosts else "")


def printed(log: Log, name: str) -> str:
    """`line 5 of run.log: NET/IB : No device found.` where a problem of that name was printed."""
    message = log.messages.get(name)
    return f"line {message.line} of {message.file}: {message.text}" if message else ""
