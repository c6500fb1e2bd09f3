"""A rank that dies in a composed layout takes the others down within seconds: one error, nobody left."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forked import fork_cli
from runs import alive, end, run, run_data, steps_done, wait_for, write_run
from scalewright.spec.errors import RunError

EIGHT = {"devices": 8, "pp": 2, "tp": 2, "global_batch": 8}
SECONDS = 15.0  # within which all must be gone, on a machine that is busy with other things


def test_a_killed_rank_takes_the_others_down(tmp_path):
    """Rank 5 is on the last stage, whose neighbours wait for it along every axis."""
    pids: list[int] = []
    killed: dict[str, float] = {}

    def kill() -> None:
        wait_for(lambda: steps_done(tmp_path / "out") >= 2, 120, "two steps")
        killed["at"] = time.monotonic()
        os.kill(pids[5], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunError, match=r"^worker 5 was killed by SIGKILL") as caught:
        run(run_data(tmp_path, layout=EIGHT, train={"steps": 100_000}), on_start=pids.extend)
    took = time.monotonic() - killed["at"]
    killer.join()
    assert len(pids) == 8
    assert took < SECONDS
    assert alive(pids) == []
    assert "\n" not in str(caught.value)


def test_an_error_on_some_ranks_is_shown_once(tmp_path):
    """The four ranks of one data rank can't read a sample; the other four wait for their gradients."""
    data: dict[str, Any] = run_data(tmp_path, layout=EIGHT, train={"steps": 50})
    data["data"] = {"python": "parts:Broken", "at": 20}
    process = fork_cli(tmp_path, "train", str(write_run(Path(tmp_path), data)))
    began = time.monotonic()
    try:
        _, err = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 1
    assert err.count("Input/output error") == 1
    assert "Traceback" not in err
    assert time.monotonic() - began < 100
