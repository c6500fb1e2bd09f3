"""The output of verbs: one JSON document for programs, or a table and plain lines for people.

print(...)                   # lines for people: control characters escaped (tests/cli/test_output.py)
with only_answer(json):      # whatever a library prints meanwhile goes to stderr
    result = work()
print_json(result)           # stdout: this and nothing else

What takes long shows its progress on stderr, a moving display on a terminal and a line now and then elsewhere; Ctrl-C
ends a search with the best layouts so far.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from types import FrameType
from typing import Any, TextIO

from scalewright.spec.common.formatting import printable
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.errors import UserError


def print(*texts: object, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Python's `print` for lines that people read: names in them can't move the cursor or set a title."""
    builtins.print(*map(printable, texts), end=end, file=file, flush=flush)


def print_exact(text: str) -> None:
    """A file's text, or a model's: as it is into a pipe, with control characters escaped on a terminal."""
    builtins.print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def print_json(document: Any) -> None:
    """Writes one JSON document on stdout; a non-finite number becomes null, as JSON has none."""
    builtins.print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "dump"):
        return _plain(value.dump())
    if is_dataclass(value):
        return _plain(vars(value))
    if hasattr(value, "item"):  # a numpy number
        return _plain(value.item())
    return str(value)


@contextlib.contextmanager
def only_answer(active: bool) -> Iterator[None]:
    """While it lasts, what is written to stdout, by children and C libraries too, goes to stderr."""
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def moves() -> bool:
    """Whether stderr is a terminal that can show a moving display."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


@contextlib.contextmanager
def working(what: str, first: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows what is going on, and yields a setter of that text: a spinner on a terminal, else a line every 8 s.
    `first` false: a rank beside the one that shows it."""
    if not first or not moves():
        with Heartbeat(what, enabled=first) as heart:
            yield heart.now
        return
    from rich.console import Console

    with Console(stderr=True).status(plain_markup(what)) as status:
        yield lambda text: status.update(plain_markup(text))


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields what takes (done, of how many) and shows it: a bar on a terminal, else a line every 8 s."""
    if not moves():
        with Heartbeat(what) as heart:
            yield lambda done, total: setattr(heart, "what", f"{what}, {done:,}" + (f" of {total:,}" if total else ""))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(plain_markup(what)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def searching() -> Iterator[tuple[Callable[[int, int], None], Callable[[], bool]]]:
    """Yields `tell(done, total)`, which a terminal shows, and `stop()`: whether Ctrl-C was pressed.

    After the first Ctrl-C the search returns its best so far, and the command exits with 130; the second is
    the usual interrupt.
    """
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


def plain_markup(value: Any) -> Any:
    """An answer whose texts rich shows as they are: a model may be called `[/b]`."""
    from rich.markup import escape

    if isinstance(value, str):
        return escape(printable(value))
    if isinstance(value, Mapping):
        return {key: plain_markup(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_markup(item) for item in value]
    return value
