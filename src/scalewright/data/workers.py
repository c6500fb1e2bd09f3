"""Pieces done by several processes, or by this one: the results are the same files either way.

    this process   hands out pieces, two a worker at most ──► worker: reads, tokenizes, commits ──► a record

Text and tokens never travel between processes. Workers are spawned (safe with threads, and on every system),
ignore Ctrl-C (this process stops them), and end on their own when this process dies.

The progress of `prepare`: a bar on a terminal, a line every 8 s in a pipe, a callback, or silence.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import wait as wait_for
from typing import Any, Literal

from scalewright.data.encode import Encoding, PieceWork
from scalewright.data.pieces import Piece
from scalewright.data.tokenizer import read_tokenizer
from scalewright.data.word_encoder import WordEncoder
from scalewright.spec.common.formatting import metric
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.common.own_imports import own_imports
from scalewright.spec.errors import RunError

_SMALL = 6 << 20  # bytes of text; less is done before other processes have started
_POLL_S = 0.1

_state: dict[str, Any] = {}
"""A worker process's values between its pieces; empty in the process that hands them out."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def do_pieces(
    encoding: Encoding, pieces: Sequence[Piece], workers: int | None, advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """The records of the pieces, as they are finished; `advance` is called with the bytes read meanwhile.

    Raises a piece's error (UserError, OSError), or RunError when a worker died; recorded pieces stay.
    """
    count = min(workers or usable_cores(), len(pieces))
    if count <= 1 or (workers is None and sum(piece.size for piece in pieces) < _SMALL):
        encoder = _encoder_of(encoding)
        for piece in pieces:
            yield PieceWork(encoding, encoder, advance).run(piece)
        return
    yield from _in_processes(encoding, pieces, count, advance)


def _encoder_of(encoding: Encoding) -> WordEncoder:
    return WordEncoder(read_tokenizer(encoding.tokenizer), encoding.options.special_tokens or ())


def _in_processes(
    encoding: Encoding, pieces: Sequence[Piece], count: int, advance: Callable[[int], None]
) -> Iterator[dict[str, object]]:
    start_method = multiprocessing.get_context("spawn")
    read = start_method.Value("q", 0)
    pool = ProcessPoolExecutor(count, mp_context=start_method, initializer=_start, initargs=(encoding, read))
    todo = iter(pieces)
    reported = 0
    try:
        with own_imports():  # all of them are started here
            running: set[Future[dict[str, object]]] = {pool.submit(_work, piece) for piece in islice(todo, 2 * count)}
        while running:
            done, running = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            total = int(read.value)
            advance(total - reported)
            reported = total
            for future in done:
                yield future.result()
            running |= {pool.submit(_work, piece) for piece in islice(todo, len(done))}
    except BrokenProcessPool:
        how = "run the same command again, with fewer --workers"
        raise RunError(f"a worker process died (out of memory?): the finished pieces are kept; {how}") from None
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(encoding: Encoding, read: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker: the library has no other switch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _state.update(encoding=encoding, read=read, encoder=_encoder_of(encoding))


def _end_with(sentinel: int) -> None:
    """Ends this process when its parent is gone, even killed: its result would be lost."""
    wait_for([sentinel])
    os._exit(1)


def _work(piece: Piece) -> dict[str, object]:
    def advance(size: int) -> None:
        with _state["read"].get_lock():
            _state["read"].value += size

    return PieceWork(_state["encoding"], _state["encoder"], advance).run(piece)


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
    if progress is None:
        yield Progress()
    elif callable(progress):
        yield Progress(progress)
    elif sys.stderr.isatty():
        with _bar() as draw:
            yield Progress(draw)
    else:
        with Heartbeat("reading the text") as heart:

            def note(stage: str, done: int, total: int) -> None:
                heart.what = f"{_LABELS.get(stage, stage)}, {metric(done, 'B')} of {metric(total, 'B')}"

            yield Progress(note)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    text, size, rate = TextColumn("{task.description:<25}"), DownloadColumn(), TransferSpeedColumn()
    columns = (text, BarColumn(), size, rate, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if total and stage not in tasks:
                tasks[stage] = bar.add_task(_LABELS.get(stage, stage), total=total)
            if stage in tasks:
                bar.update(tasks[stage], completed=done)

        yield draw
