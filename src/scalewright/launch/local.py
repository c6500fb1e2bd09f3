"""Starts N workers on this machine and reports for them: one error, no orphans.

    supervisor --pipe--> worker 0     a worker that dies takes the others down within seconds
        |     --pipe--> worker 1     a supervisor that dies closes the pipes, and the workers leave
        '--- SIGTERM, SIGINT, USR1, USR2, HUP: the workers are asked to save and leave by themselves
                                       a second SIGINT closes the pipes

On one of several nodes the workers are ranks of the bigger world, which meet over TCP.

The target is a top-level function `target(context, *arguments)`; its result must be picklable.
"""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from scalewright.launch.begin import begin_by, cores, prepare_workers, without_main
from scalewright.launch.deaths import ADVICE, Died, aborted, blame, culprits, follows, likeness, oom_kills
from scalewright.launch.fork_server import WORKER, can_answer
from scalewright.launch.rank import RankContext, find_context
from scalewright.launch.regroup import READY, STUCK, Keeper, Line, Regroups
from scalewright.launch.settings import use_loopback
from scalewright.launch.stop import EARLY, STOP_SIGNALS, stop_signals
from scalewright.spec.common.files import scratch_folder
from scalewright.spec.errors import RunError, Stopped, UserError

GRACE_SECONDS = 1.0  # between asking the survivors of a dead worker to leave and killing them
CAUSE_SECONDS = 5.0  # between a broken connection and the error of its other end
ROW, BEGUN = "row", "begun"  # the kinds of a worker's messages before its answer


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection  # for the worker's answer; when it closes, the worker leaves
    answer: tuple[str, Any] | None = None
    begun: bool = False
    last_words: Path | None = None
    ready: bool = False  # to meet others anew (regroup.py)
    accuses: tuple[int, str] | None = None  # a rank that doesn't get on, and why

    def tell(self, message: Any) -> None:
        """Sends it something, if it is there."""
        if self.answer is None:
            with suppress(OSError):
                self.pipe.send(message)


def run_local(
    target: Callable[..., Any],
    arguments: Sequence[Any],
    world: int,
    *,
    preload: Sequence[str] = (),
    threads: int | None = None,
    on_start: Callable[[list[int]], None] | None = None,
    on_row: Callable[[str, dict[str, object]], bool] | None = None,
    import_main: bool = True,
    node: RankContext | None = None,
    devices: Sequence[int] = (),
    keeper: Keeper | None = None,
) -> Any:
    """Runs `target(context, *arguments)` in `world` processes; returns the first one's answer.

    Raises the first failing worker's error if it is one of ours, else RunError with that worker's message, once.
    `on_start` gets the process ids. `threads` per worker defaults to cores / world. `on_row` gets the arguments of rank
    0's `context.tell`, in this process; when it returns true, the workers save and leave. Raises KeyboardInterrupt at a
    second Ctrl-C, with which the workers leave at once. `import_main` false: workers don't import the script that
    called (it needs no `__main__` guard then, and nothing of it can be among the arguments). `node`: this process's
    rank among nodes, each of which starts `world` workers of one bigger world. `devices`: the numbers of the workers'
    devices, where they aren't 0, 1, ... `keeper`: who can go on without workers that died (regroup.py); each then has a
    `context.line`, and their seats are what numbers of workers mean.
    """
    workers: list[_Worker] = []
    signals: list[int] = []
    pending: list[int] = []  # of these, what the workers haven't been given
    starting: list[int] = []  # the rank whose process is being started

    def pass_on() -> None:
        while True:  # also from a handler in the middle of this, which may take the last: each goes out once
            try:
                number = pending.pop(0)
            except IndexError:
                return
            _ask_to_stop(workers, signal.SIGTERM if number == signal.SIGINT else number)

    def forward(number: int) -> None:
        signals.append(number)
        pending.append(number)
        if signals.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        if len(workers) < world:  # none can have met the others yet
            if len(signals) == 1 and not starting:
                raise Stopped(EARLY)
            return  # a start that was cut short would leave a process that nobody ends
        pass_on()

    with stop_signals(forward), scratch_folder("ranks") as folder:
        prepare_workers(preload)
        start_method, kills, stuck = begin_by(preload), oom_kills(), tuple[int, ...]()
        threads = threads or find_context().threads or max(1, cores() // world)

        def start(rank: int, *, joins: bool = False) -> _Worker:
            context = _context(rank, world, folder, threads, node)
            context = replace(
                context, device=devices[rank] if devices else None, seat=rank if keeper else None, joins=joins
            )
            follow = on_row is not None and (context.rank == 0 or keeper is not None)
            starting.append(rank)
            with nullcontext() if import_main else without_main():
                worker = _start(start_method, target, context, arguments, follow)
            starting.clear()
            return worker

        try:
            for rank in range(world):
                workers.append(start(rank))
                if signals and len(workers) < world:
                    raise Stopped(EARLY)
            pass_on()  # what came while the last one was started
            if on_start:
                on_start([worker.process.pid or 0 for worker in workers])
            return _watch(workers, on_row, Regroups(keeper, workers, partial(start, joins=True)) if keeper else None)
        except Stopped as error:
            error.by_signal = bool(signals)
            raise
        except Died as error:
            # A worker that had no handler yet, or hadn't imported what it runs.
            if error.number in STOP_SIGNALS or (signal.SIGINT in signals and error.importing):
                raise Stopped(EARLY) from None
            if error.number == signal.SIGKILL and (oom_kills() or 0) > (kills or 0):
                reason = RunError(f"{error}; the kernel ended it: this machine ran out of memory: {ADVICE}")
                reason.ranks, reason.failure, reason.failed_at = error.ranks, error.failure, error.failed_at
                raise reason from None
            raise
        except RunError as error:
            stuck = error.ranks
            raise
        finally:
            _end(workers, stuck)


def _context(index: int, world: int, folder: Path, threads: int, node: RankContext | None) -> RankContext:
    """Worker `index` of the `world` here; with `node`, which is one of several, of all of theirs."""
    if node is not None:
        return node.of_node(index, world, folder, threads)
    store = (folder / "store").as_uri()
    return RankContext(index, world, index, world, store, starter="local", threads=threads, supervisor=folder)


def is_worker() -> bool:
    """Whether this process is one that `run_local` started."""
    return multiprocessing.current_process().name.startswith(WORKER)


def _start(
    start_method: Any, target: Callable[..., Any], context: RankContext, arguments: Sequence[Any], follow: bool
) -> _Worker:
    pipe, worker_pipe = start_method.Pipe(duplex=True)
    given = worker_pipe, target, context, tuple(arguments), follow
    process = start_method.Process(target=_work, args=given, name=f"{WORKER}{context.rank}")
    process.start()
    worker_pipe.close()
    return _Worker(process, pipe, last_words=context.last_words)


def _work(
    pipe: Connection, target: Callable[..., Any], context: RankContext, arguments: tuple[Any, ...], follow: bool
) -> None:
    """A worker's main function: sends its answer through the pipe, leaves when the supervisor is gone."""
    if context.local_world == context.world:
        use_loopback()
    with suppress(Exception):  # a crash in native code prints its stack to stderr, if there is one
        faulthandler.enable()
    sending = threading.Lock()

    def send(message: tuple[str, Any]) -> None:
        with sending:
            pipe.send(message)

    if follow:
        context = replace(context, tell=lambda kind, row: send((ROW, (kind, row))))
    if context.seat is not None:
        context = replace(context, line=Line(send, joins=context.joins))
    done = threading.Event()
    threading.Thread(target=_leave_with_supervisor, args=(pipe, done, context.line), daemon=True).start()
    try:
        can_answer()
        pipe.send((BEGUN, None))
        answer: tuple[str, Any] = ("ok", target(context, *arguments))
    except (UserError, RunError, Stopped) as error:
        answer = ("raise", error)
    except KeyboardInterrupt:  # a terminal's, before this worker had a handler
        answer = ("raise", Stopped(EARLY))
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        answer = ("crash", (f"{type(error).__name__}: {error}".splitlines()[0], text))
    done.set()
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # too late to kill the worker: its answer counts
    with suppress(OSError):  # the supervisor may be gone
        pipe.send(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if answer[0] == "ok" else 1)  # skip atexit: a broken process group would hang there


def _leave_with_supervisor(pipe: Connection, done: threading.Event, line: Line | None) -> None:
    """Ends the worker when the supervisor's end of the pipe closes: no orphans, even after kill -9."""
    try:
        while True:
            message = pipe.recv()
            if line is not None:
                line.hear(message)
    except (EOFError, OSError):
        if not done.is_set():
            os._exit(1)


def _watch(
    workers: list[_Worker], on_row: Callable[[str, dict[str, object]], bool] | None, regroups: Regroups | None = None
) -> Any:
    """Waits for every worker and hands on rank 0's rows; at the first failure stops waiting and raises it, unless
    others can go on (`regroups`)."""
    failures: list[tuple[int, tuple[str, Any]]] = []
    deadline: float | None = None
    failed_at: float | None = None
    while pending := [worker for worker in workers if worker.answer is None]:
        if deadline is not None and time.monotonic() >= deadline:
            break
        if regroups is not None and deadline is None:
            if regroups.over():
                break
            regroups.look()
            pending = [worker for worker in workers if worker.answer is None]
        wait([w.pipe for w in pending] + [w.process.sentinel for w in pending], timeout=0.2)
        for worker in pending:
            alive = worker.process.is_alive()  # before reading: a worker that is gone has sent everything
            for kind, row in _receive(worker):
                if on_row is not None and on_row(kind, row):
                    _ask_to_stop(workers)
            if worker.answer is None and alive:
                continue
            rank = workers.index(worker)
            worker.answer = worker.answer or _last_words(worker) or _death(worker)
            if regroups is not None and not failures and regroups.takes(rank, worker.answer):
                continue
            if worker.answer[0] != "ok":
                failures.append((rank, worker.answer))
                failed_at = failed_at or time.time()
                # Others' errors follow from the first. A broken connection is one: the cause is to come.
                patience = CAUSE_SECONDS if all(follows(f) or aborted(f) for f in failures) else 1.0
                if any(kind == "raise" and getattr(detail, "ranks", ()) for _, (kind, detail) in failures):
                    patience = 0.0  # all is known
                deadline = min(deadline or math.inf, time.monotonic() + patience)
    if regroups is not None and regroups.failures:
        regroups.look()  # nobody is left
    if failures:
        error = blame(failures)
        if isinstance(error, RunError):
            error.ranks = culprits(failures, len(workers))
            error.failure = error.failure or likeness(error, "".join(getattr(error, "__notes__", ())))
            error.failed_at = failed_at if error.failed_at is None else error.failed_at
        raise error
    first = workers[regroups.members[0] if regroups is not None else 0]
    return first.answer[1] if first.answer else None


def _receive(worker: _Worker) -> Iterator[tuple[str, dict[str, object]]]:
    """The rows that a worker has sent; sets `worker.answer` when that has come."""
    while worker.answer is None and worker.pipe.poll():
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            return
        if kind == ROW:
            yield content
        elif kind == BEGUN:
            worker.begun = True
        elif kind == READY:
            worker.ready = True
        elif kind == STUCK:
            worker.accuses = content
        else:
            worker.answer = (kind, content)


def _last_words(worker: _Worker) -> tuple[str, Any] | None:
    """The reason left by a worker that couldn't answer: its main thread was stuck outside Python."""
    with suppress(OSError):
        if worker.last_words is not None:
            about, _, reason = worker.last_words.read_text(encoding="utf-8").partition("\n")
            error, (behind, since) = RunError(reason), about.split()
            error.ranks, error.failed_at = (int(behind),), float(since)
            return "raise", error
    return None


def _death(worker: _Worker) -> tuple[str, Any]:
    """The end of a worker without an answer: its exit code, and whether it had begun its work."""
    worker.process.join(1.0)
    return "died", (worker.process.exitcode, worker.begun)


def _end(workers: list[_Worker], stuck: Sequence[int] = ()) -> None:
    """Closes the pipes, so that the remaining workers leave; kills those that don't, and those that are `stuck`."""
    for rank, worker in enumerate(workers):
        worker.pipe.close()
        if rank in stuck:
            worker.process.kill()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _ask_to_stop(workers: list[_Worker], number: int = signal.SIGTERM) -> None:
    """Lets the workers save and leave by themselves."""
    for worker in workers:
        if worker.process.is_alive() and worker.process.pid:
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)
