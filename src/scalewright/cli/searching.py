"""Progress of a search on a terminal, and Ctrl-C to end it with the best layouts so far.

first Ctrl-C    stop() is true: the search returns the best so far, and the command exits with 130
second          the usual interrupt
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from scalewright.cli.output import progress
from scalewright.spec.errors import UserError


@contextlib.contextmanager
def searching() -> Iterator[tuple[Callable[[int, int], None], Callable[[], bool]]]:
    """Yields `tell(done, total)`, which a terminal shows, and `stop()`: whether Ctrl-C was pressed."""
    stopped = threading.Event()
    try:
        with _interrupts(stopped), progress("searching layouts") as tell:
            yield tell, stopped.is_set
    except UserError:
        if stopped.is_set():  # before anything was found: that is no mistake of the user's
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _interrupts(stopped: threading.Event) -> Iterator[None]:
    """The first Ctrl-C sets `stopped`; only the main thread may take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
