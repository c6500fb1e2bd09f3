"""Processes that we start import from the working folder only where this one does.

    user's folder   random.py  queue.py  run.yaml       scalewright train run.yaml       looks in its environment alone
                                                        └── python -c, python -m         look in the folder first

multiprocessing starts its servers and workers so, and a user's `queue.py` would be Python's own to them. PYTHONSAFEPATH
(Python 3.11) turns that off. A rank takes it back (launch/fork_server.py): programs that a user's code starts need
their own folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

VARIABLE, OURS = "PYTHONSAFEPATH", "scalewright"  # any value turns it on


@contextmanager
def own_imports() -> Iterator[None]:
    """Python processes that are started meanwhile don't look in the working folder, unless this one does."""
    folders = {""}
    with suppress(OSError):  # it was removed
        folders.add(os.getcwd())
    if folders & set(sys.path) or VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = OURS
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def take_back() -> None:
    """In a process that was started so: what it starts looks where it would."""
    if os.environ.get(VARIABLE) == OURS:
        del os.environ[VARIABLE]
