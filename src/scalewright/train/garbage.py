"""Python's garbage collector at chosen steps, on all ranks alike.

    left to itself    a rank stops now and then, by its own count of objects; at 256 ranks one of them nearly
                      always does, and the others wait
    here              before the first step, then every 50th step; saves and validations collect everything

What lives before the first step (modules, weights) is frozen: no later collection looks at it. torchtitan
does the same (its `gc_freq`, 50).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 50


@contextmanager
def garbage_at_steps() -> Iterator[None]:
    """Collects and freezes once, then leaves collecting to `collect_garbage`; afterwards all is as before.

    Where something is frozen already, by a caller or of a worker's imports (launch/fork_server.py), it stays
    that alone: what is added to it couldn't be thawed apart.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.collect()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def collect_garbage(step: int, *, everything: bool) -> None:
    """After a step; `everything`: the run has validated or saved, which takes its time anyway."""
    if everything:
        gc.collect()
    elif step % EVERY == 0:
        gc.collect(1)  # young objects: a full collection takes tenths of a second
