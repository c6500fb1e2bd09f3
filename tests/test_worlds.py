"""Worlds of tests: each begins in the same state, fails as a test should, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

import worlds
from runs import alive, descendants, wait_for
from scalewright.spec.errors import RunError
from worlds import run_world

TWO = {"devices": 2}
TESTS = Path(__file__).resolve().parent


def state(mesh: Any, layout: Any, change: bool = False) -> list[str]:
    """What a test can change in its process, as it is before this world's own changes."""
    seen = [
        str(torch.get_default_dtype()),
        str(torch.are_deterministic_algorithms_enabled()),
        str(torch.get_num_threads()),
        str(torch.initial_seed()),
        str(torch.rand(2).tolist()),
        str(np.random.rand()),
        os.getcwd(),
        str(sorted(os.environ.items())),
        dist.all_reduce.__module__,
        worlds.plain.__module__,
        str(len(dist.distributed_c10d._world.pg_map)),
        str(sorted(name for name in sys.modules if name.startswith("planted"))),
    ]
    if change:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(5)
        np.random.seed(5)
        os.chdir("/")
        os.environ["PLANTED"] = "1"
        dist.all_reduce = worlds.plain = lambda *_: None
        dist.new_group([0, 1])
        sys.modules["planted"] = sys
    return seen


def test_a_world_finds_nothing_of_the_one_before() -> None:
    before = run_world(state, TWO, True)
    assert before == run_world(state, TWO)


def fail(mesh: Any, layout: Any, how: str) -> int:
    """Rank 1 fails; the others wait for it."""
    if mesh.rank == 1:
        if how == "raises":
            raise ValueError("planted")
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()
    return 0


@pytest.mark.parametrize(
    ("how", "words"), [("raises", "worker 1 failed: ValueError: planted"), ("dies", "worker 1 was killed by SIGSEGV")]
)
def test_a_failure_on_one_rank_is_the_tests(how: str, words: str) -> None:
    with pytest.raises(RunError, match=words) as caught:
        run_world(fail, TWO, how)
    if how == "raises":
        assert 'in fail\n    raise ValueError("planted")' in caught.value.__notes__[0]
    assert len(run_world(state, TWO)) == 2  # the next world is whole


@pytest.mark.slow  # a pytest of its own; that ranks leave with whoever started them: tests/launch/test_local.py
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGALRM], ids=["killed", "timeout"])
def test_no_process_outlives_a_session(end: signal.Signals, tmp_path: Path) -> None:
    """Neither ranks that hang nor the fork server, when pytest is killed or the test's time is over: ALRM."""
    session = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            str(TESTS / "hang_in_a_world.py"),
            "--timeout",
            "600",
        ],
        cwd=TESTS.parent,
        env={**os.environ, "HANGS_IN": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, 120, "both ranks")
        below = descendants(session.pid)
        assert {int(path.name) for path in tmp_path.iterdir()} <= set(below)
        session.send_signal(end)
        out = session.communicate(timeout=90)[0]
        assert end == signal.SIGKILL or "Timeout" in out
        wait_for(lambda: not alive(below), 20, "ranks, fork server and tracker to leave")
    finally:
        session.kill()
        for pid in alive([int(path.name) for path in tmp_path.iterdir()]):
            psutil.Process(pid).kill()


def imported(mesh: Any, layout: Any) -> list[bool]:
    """Whether the fork server had these, and whether it left the paths of its imports behind."""
    return [
        "rank_image" in sys.modules,
        "layout_steps" in sys.modules,
        os.environ.get("PYTHONPATH", "").startswith(str(TESTS)),
    ]


def test_ranks_are_forked_from_the_image() -> None:
    assert run_world(imported, TWO) == [[True, True, False]] * 2
