"""Python's garbage collector at chosen steps, on all ranks alike.

    left to itself    a rank stops now and then, by its own count of objects; at 256 ranks one of them nearly
                      always does, and the others wait
    here              before the first step, then every 50th step; saves and validations collect everything

What lives before the first step (modules, weights) is frozen: no later collection looks at it. torchtitan
does the same (its `gc_freq`, 50).
"""

from __future__ import annotations

import gc
from types import TracebackType

EVERY = 50


class Garbage:
    """A context manager around the loop; the collector is as it was before, afterwards."""

    def __enter__(self) -> Garbage:
        self._enabled = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.unfreeze()
        if self._enabled:
            gc.enable()

    def stepped(self, step: int, *, pause: bool) -> None:
        """After a step; `pause`: the run has validated or saved."""
        if pause:
            gc.collect()
        elif step % EVERY == 0:
            gc.collect(1)  # young objects: a full collection takes tenths of a second
