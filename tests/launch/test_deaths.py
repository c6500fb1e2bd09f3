"""A worker that the kernel ended for lack of memory is told apart from one that somebody killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scalewright.launch.deaths import oom_kills
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import RunError


def die(context: RankContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_counters_are_read(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 9\noom_kill 3\n")
    assert oom_kills(tmp_path) == 3
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (tmp_path / "sys/fs/cgroup/a/b").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/a/b/memory.events").write_text("low 0\noom_kill 7\n")
    assert oom_kills(tmp_path) == 7


@pytest.mark.parametrize("kernel", [True, False])
def test_a_killed_worker_names_the_cause(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((4, 5) if kernel else (4, 4))
    monkeypatch.setattr("scalewright.launch.local.oom_kills", lambda: next(counts))
    with pytest.raises(RunError, match="worker 1 was killed by SIGKILL") as caught:
        run_local(die, (), 2)
    assert ("this machine ran out of memory: use fewer processes" in str(caught.value)) == kernel
