"""Local workers: one answer or one error, and nobody left behind."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from runs import TESTS, alive, descendants, end, wait_for
from scalewright.launch import begin, local
from scalewright.launch.local import _watch, _Worker, run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import RunError, Stopped, UserError

SECONDS = 20.0  # within which everybody must be gone, on a machine that is busy with other things


def echo(context: RankContext, value: int) -> dict[str, int | str]:
    return {"rank": context.rank, "world": context.world, "value": value, "threads": str(context.threads)}


def user_error_on_one(context: RankContext) -> None:
    if context.rank == 1:
        raise UserError("what", "where", "how")
    time.sleep(60)


def bug_on_all(context: RankContext) -> None:
    raise KeyError(f"missing on {context.rank}")


def lost_its_peer(context: RankContext) -> None:
    """Rank 1 fails, but its peer notices before it has said so."""
    if context.rank == 0:
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    time.sleep(2.0)
    raise ValueError("the cause")


def killed_on_one(context: RankContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def exits_on_one(context: RankContext) -> None:
    if context.rank == 0:
        os._exit(3)
    time.sleep(60)


def crashes_on_one(context: RankContext) -> None:
    if context.rank == 1:
        os.abort()
    time.sleep(60)


def stops_politely(context: RankContext) -> None:
    raise Stopped("saved")


def sleeps_through(context: RankContext, folder: str) -> None:
    """Says that it is there, and doesn't listen to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(folder) / f"{context.rank}-{os.getpid()}").touch()
    time.sleep(120)


def test_rank_zero_answers():
    assert run_local(echo, (7,), 3, threads=2) == {"rank": 0, "world": 3, "value": 7, "threads": "2"}


def run_and_watch(target, world=2, arguments=()):
    """What it raised, the seconds it took, and the workers that still live."""
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises((RunError, UserError, Stopped)) as caught:
        run_local(target, arguments, world, threads=1, on_start=pids.extend)
    assert len(pids) == world
    assert time.monotonic() - began < SECONDS
    assert alive(pids) == []
    return caught.value


def test_a_user_error_comes_through_whole():
    error = run_and_watch(user_error_on_one)
    assert isinstance(error, UserError)
    assert (error.what, error.where, error.how) == ("what", "where", "how")
    assert str(error) == "what (where): how"


def test_a_worker_that_raises_shows_its_error_once(capfd):
    error = run_and_watch(bug_on_all, world=3)
    assert "missing on" in str(error)
    assert str(error).count("KeyError") == 1
    assert "\n" not in str(error)
    assert "Traceback" in "".join(error.__notes__)  # for --debug
    assert capfd.readouterr().err == ""


def test_the_cause_is_shown_and_not_what_followed_from_it():
    error = run_and_watch(lost_its_peer)
    assert str(error) == "worker 1 failed: ValueError: the cause"


def test_a_killed_worker_takes_the_others_down():
    error = run_and_watch(killed_on_one)
    assert isinstance(error, RunError)
    assert "worker 1 was killed by SIGKILL" in str(error)


def test_a_worker_that_leaves_without_a_word():
    assert "worker 0 left with exit code 3" in str(run_and_watch(exits_on_one))


def test_a_polite_stop_is_no_failure():
    assert isinstance(run_and_watch(stops_politely), Stopped)


CRASH = """
from launch.test_local import crashes_on_one
from scalewright.launch.local import run_local
if __name__ == "__main__":
    run_local(crashes_on_one, (), 2, threads=1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to die of")
def test_a_crash_in_native_code_says_where_it_was(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,  # where a core file goes, on a machine that keeps them
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "worker 1 was killed by SIGABRT" in done.stderr
    assert "Fatal Python error: Aborted" in done.stderr
    assert "in crashes_on_one" in done.stderr


class LeavesWhileLookedAt:
    """A process that answers and leaves between two looks at it."""

    exitcode = 0

    def __init__(self, pipe: Connection, answer: Any) -> None:
        self.sentinel, self._pipe, self._answer = pipe, pipe, answer

    def is_alive(self) -> bool:
        if not self._pipe.closed:
            self._pipe.send(self._answer)
            self._pipe.close()
        return False

    def join(self, timeout: float) -> None:
        pass


def test_an_answer_on_the_way_out_is_heard():
    """An empty pipe, then answer and exit, then no process: on busy machines that was a death."""
    ours, theirs = multiprocessing.Pipe()
    worker = _Worker(LeavesWhileLookedAt(theirs, ("ok", "an answer")), ours)
    assert _watch([worker], None) == "an answer"


SUPERVISOR = """
import sys
from launch.test_local import sleeps_through
from scalewright.launch.local import run_local
if __name__ == "__main__":
    run_local(sleeps_through, (sys.argv[1],), 2, threads=1)
"""


def start_supervisor(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    marks = tmp_path / "marks"
    marks.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(marks)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(marks.iterdir())) == 2, 90, "two workers")
    return process, [int(mark.name.split("-")[1]) for mark in marks.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")
def test_a_killed_supervisor_leaves_no_orphans(tmp_path):
    """Not even workers that ignore SIGTERM, nor the server that they were forked from."""
    process, workers = start_supervisor(tmp_path)
    try:
        family = {*descendants(process.pid), *workers}
        assert len(family) >= 3  # the workers and their server
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_for(lambda: not alive(family), SECONDS, "the workers to leave")
    finally:
        end(process)


class SignalledOnTheWay:
    """An answer during whose pickling a SIGTERM comes."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return str, ("saved",)


def answers_late(context: RankContext) -> SignalledOnTheWay:
    return SignalledOnTheWay()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
def test_a_signal_after_the_work_is_ignored():
    """A stop that is asked for while workers answer comes too late to fail them."""
    assert run_local(answers_late, (), 2, threads=1) == "saved"


def dies_of_sigterm(context: RankContext, folder: str) -> None:
    """A worker that hasn't got as far as listening to signals."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (Path(folder) / str(context.rank)).touch()
    time.sleep(60)


def test_a_signal_before_the_first_step_is_a_stop(tmp_path):
    """The supervisor passes SIGTERM on; workers that are still starting die of it, which is no failure."""
    import threading

    def ask() -> None:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, 60)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Stopped, match="the same command"):
        run_local(dies_of_sigterm, (str(tmp_path),), 2, threads=1)
    asking.join()


def trains(context: RankContext) -> str:
    """A worker that outlives its supervisor's wish, unless it is asked itself."""
    time.sleep(3)
    return "trained"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_while_workers_start_is_a_stop(monkeypatch, number, before):
    """It came before a worker was in the list of those to be asked, and nothing sent it again. A start isn't
    cut short: its process would be in no list, and nobody would end it."""
    start, pids = local._start, []

    def start_and_ask(*arguments):
        if before:
            os.kill(os.getpid(), number)
        worker = start(*arguments)
        pids.append(worker.process.pid)
        if not before:
            os.kill(os.getpid(), number)
        return worker

    monkeypatch.setattr(local, "_start", start_and_ask)
    with pytest.raises(Stopped, match="the same command"):
        run_local(trains, (), 2, threads=1)
    assert len(pids) == 1
    wait_for(lambda: alive(pids) == [], SECONDS)


def dies_of_hangup(context: RankContext) -> None:
    """A worker that was signalled by itself, before it had a handler."""
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(60)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_worker_that_a_signal_ends_before_it_listens_is_a_stop():
    with pytest.raises(Stopped, match="the same command"):
        run_local(dies_of_hangup, (), 2, threads=1)


def fails_when_asked(context: RankContext, folder: str, code: int) -> None:
    """A worker that trains, and fails when it should save."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    (Path(folder) / str(context.rank)).touch()
    time.sleep(60)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
@pytest.mark.parametrize("code", [1, 3])
def test_an_interrupt_hides_no_failure(tmp_path, code):
    """1 is Python's own code of an interrupt, too: of a worker that hadn't begun."""
    import threading

    def ask() -> None:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, 60)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(RunError, match=f"left with exit code {code}"):
        run_local(fails_when_asked, (str(tmp_path), code), 2, threads=1)
    asking.join()


class EndsInItsImports(LeavesWhileLookedAt):
    exitcode = 1

    def is_alive(self) -> bool:
        return False


def test_an_interrupt_in_a_workers_imports_is_a_stop(monkeypatch):
    """It ends with 1 before it can answer."""

    def start(*arguments: Any) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        os.kill(os.getpid(), signal.SIGINT)
        return _Worker(EndsInItsImports(theirs, None), ours)

    monkeypatch.setattr(local, "_start", start)
    monkeypatch.setattr(EndsInItsImports, "pid", 0, raising=False)
    with pytest.raises(Stopped, match="the same command"):
        run_local(trains, (), 1, threads=1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_once(monkeypatch, number):
    """Also one that comes when the last worker is in the list, and the start isn't over."""
    asked: list[int] = []
    ask = local._ask_to_stop

    def counted(workers: list[_Worker], number: int = signal.SIGTERM) -> None:
        asked.append(number)
        ask(workers, number)

    @contextmanager
    def signalled_at_its_end() -> Iterator[None]:
        yield
        os.kill(os.getpid(), number)

    monkeypatch.setattr(local, "_ask_to_stop", counted)
    monkeypatch.setattr(local, "nullcontext", signalled_at_its_end)
    with pytest.raises(Stopped):
        run_local(trains, (), 1, threads=1)
    assert asked == [number]


def saves_for_a_minute(context: RankContext, folder: str) -> None:
    """A worker that has been asked to stop, and isn't done with it."""
    signal.signal(signal.SIGTERM, lambda *_: (Path(folder) / f"asked-{context.rank}").touch())
    (Path(folder) / f"up-{context.rank}").touch()
    for _ in range(600):
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
def test_a_second_interrupt_ends_the_workers_at_once(tmp_path):
    import threading

    pids: list[int] = []

    def ask() -> None:
        for word in ("up", "asked"):
            wait_for(lambda word=word: len(list(tmp_path.glob(f"{word}-*"))) == 2, 60)
            os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_local(saves_for_a_minute, (str(tmp_path),), 2, threads=1, on_start=pids.extend)
    asking.join()
    assert time.monotonic() - start < SECONDS
    assert alive(pids) == []


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned there")
def test_the_fork_server_outlives_sigterm_and_others_do_not():
    """A caller's own processes of the same server can be terminated as usual."""
    run_local(echo, (1,), 1)
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGTERM)
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
    process.start()
    assert multiprocessing.forkserver._forkserver._forkserver_pid == server
    process.terminate()
    process.join(20)
    assert process.exitcode == -signal.SIGTERM


class Interrupts:
    """Sends SIGINT to the process that unpickles it: a worker that has begun nothing yet."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _interrupt, ()


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned there")
def test_a_worker_that_is_interrupted_before_it_begins_is_a_stop() -> None:
    """It died with Python's own traceback where a terminal's Ctrl-C came in its first lines."""
    with pytest.raises(Stopped):
        run_local(echo, (Interrupts(),), 1)
    process = multiprocessing.get_context("forkserver").Process(target=print, args=(Interrupts(),))
    process.start()
    process.join(20)
    assert process.exitcode == 1  # a caller's own gets KeyboardInterrupt, as everywhere


@pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")
def test_a_long_folder_for_temporary_files_holds_no_socket(tmp_path, monkeypatch):
    """Workflow managers set TMPDIR to paths of 100 characters and more; a socket's has 107 at most."""
    (tmp_path / ("t" * 100)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("t" * 100)))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    with begin._short_names(), socket.socket(socket.AF_UNIX) as made:
        made.bind(multiprocessing.connection.arbitrary_address("AF_UNIX"))
    assert tempfile.gettempdir() == str(tmp_path / ("t" * 100))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path)[:40])
    with begin._short_names():
        assert tempfile.gettempdir() == str(tmp_path)[:40]
