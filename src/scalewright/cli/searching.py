"""Progress of a search on a terminal, and Ctrl-C to end it with the best layouts so far.

first Ctrl-C    stop() is true: the search returns the best so far, and the command exits with 130
second          the usual interrupt
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from scalewright.spec.errors import UserError


@dataclass
class Shown:
    """The two ends that a search holds."""

    bar: Any = None
    task: Any = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def tell(self, done: int, total: int) -> None:
        """Layouts looked at, of all."""
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)

    def stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.stopped.is_set()


@contextlib.contextmanager
def searching() -> Iterator[Shown]:
    """While it lasts, Ctrl-C asks the search to end, and a terminal shows how far it is."""
    shown = Shown()
    try:
        with _interrupts(shown), _bar(shown):
            yield shown
    except UserError:
        if shown.stop():  # stopped before anything was found: that is no mistake of the user's
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _interrupts(shown: Shown) -> Iterator[None]:
    """The first Ctrl-C sets `stopped`; only the main thread may take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if shown.stop():
            raise KeyboardInterrupt
        shown.stopped.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


@contextlib.contextmanager
def _bar(shown: Shown) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("searching layouts"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown.bar, shown.task = bar, bar.add_task("searching", total=None)
        yield
