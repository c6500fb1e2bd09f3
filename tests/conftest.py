"""What every test may use. One thread per process: many test processes share few cores."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch

import pytest

import rank_image

ROOT = Path(__file__).resolve().parent.parent

for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
    if signal.getsignal(number) == signal.SIG_IGN:  # under nohup, or in the background of a script
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What all tests imported stays out of collections of garbage, with one of which each run begins."""
    gc.collect()
    gc.freeze()
    rank_image.shorten_starts()


@pytest.fixture(scope="session", autouse=True)
def _full_fork_server() -> Iterator[None]:
    """The fork server, once a test starts it, has imported what ranks of tests need (rank_image.py)."""
    choose, start = forkserver.set_forkserver_preload, forkserver.ensure_running

    def start_with_paths() -> None:
        with pytest.MonkeyPatch.context() as patch:
            for path in reversed(rank_image.PATHS):
                patch.setenv("PYTHONPATH", path, prepend=os.pathsep)
            start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: choose([*names, rank_image.NAME]))
        patch.setattr(forkserver, "ensure_running", start_with_paths)
        yield


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr, beside those of a slow machine's progress; fails when there isn't exactly one."""
        lines = [line for line in self.err.strip().splitlines() if not re.search(r": \d+ s so far$", line)]
        assert len(lines) == 1, f"expected one line on stderr, got:\n{self.err}"
        return lines[0]

    def json(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)


@pytest.fixture
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., Answer]:
    """Runs `scalewright ...` in a process of its own, in an empty folder; a `fresh` one imports anew, in `environ`."""

    def run(
        *arguments: object, cwd: Path = tmp_path, timeout: float = 120, fresh: bool = False, **environ: str
    ) -> Answer:
        from forked import fork_cli
        from runs import end, start_cli

        start = start_cli if fresh else fork_cli
        process = start(cwd, *map(str, arguments), **{"COLUMNS": "100", **environ})
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            end(process)
        assert process.returncode is not None
        return Answer(process.returncode, out, err)

    return run


@pytest.fixture
def call_cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The same without a new process: quicker, for everything that doesn't depend on one."""
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of xdist have one, a user's pipe none

    def call(*arguments: object) -> Answer:
        from scalewright.cli import main

        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
