"""How far `prepare` is: a bar on a terminal, a callback, or silence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

_LABELS = {"learn": "learning the tokenizer", "verify": "checking finished pieces", "tokenize": "tokenizing"}


class Progress:
    """Counts bytes of a stage, and tells them on; this one tells nobody."""

    def __init__(self, tell: Callable[[str, int, int], None] | None = None) -> None:
        self._tell, self._stage, self._done, self._total = tell, "", 0, 0

    def start(self, stage: str, total: int) -> None:
        """Begins a stage of `total` bytes."""
        self._stage, self._done, self._total = stage, 0, total
        self.advance(0)

    def advance(self, size: int) -> None:
        """Says that `size` more bytes are done."""
        self._done = min(self._done + size, self._total)
        if self._tell:
            self._tell(self._stage, self._done, self._total)


@contextmanager
def progress_of(wanted: Literal["auto"] | Callable[[str, int, int], None] | None) -> Iterator[Progress]:
    """A Progress that calls `wanted`, or that draws on stderr when that is a terminal."""
    if wanted is None or (wanted == "auto" and not sys.stderr.isatty()):
        yield Progress()
    elif callable(wanted):
        yield Progress(wanted)
    else:
        with _bar() as tell:
            yield Progress(tell)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<25}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if total and stage not in tasks:
                tasks[stage] = bar.add_task(_LABELS.get(stage, stage), total=total)
            if stage in tasks:
                bar.update(tasks[stage], completed=done)

        yield tell
