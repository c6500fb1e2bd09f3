"""The progress of `prepare`: a bar on a terminal, a callback, or silence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

_LABELS = {"learn": "learning the tokenizer", "verify": "checking finished pieces", "tokenize": "tokenizing"}


class Progress:
    """Counts bytes of a stage, and passes them to `call`, if there is one."""

    def __init__(self, call: Callable[[str, int, int], None] | None = None) -> None:
        self._call, self._stage, self._done, self._total = call, "", 0, 0

    def start(self, stage: str, total: int) -> None:
        """Begins a stage of `total` bytes."""
        self._stage, self._done, self._total = stage, 0, total
        self.advance(0)

    def advance(self, size: int) -> None:
        """Adds `size` finished bytes."""
        self._done = min(self._done + size, self._total)
        if self._call:
            self._call(self._stage, self._done, self._total)


@contextmanager
def progress_of(progress: Literal["auto"] | Callable[[str, int, int], None] | None) -> Iterator[Progress]:
    """A Progress that calls `progress`, or that draws on stderr when that is a terminal."""
    if progress is None or (progress == "auto" and not sys.stderr.isatty()):
        yield Progress()
    elif callable(progress):
        yield Progress(progress)
    else:
        with _bar() as draw:
            yield Progress(draw)


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

        def draw(stage: str, done: int, total: int) -> None:
            if total and stage not in tasks:
                tasks[stage] = bar.add_task(_LABELS.get(stage, stage), total=total)
            if stage in tasks:
                bar.update(tasks[stage], completed=done)

        yield draw
