"""Ranks that torchrun starts train as local workers do; one of them answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import scalewright as sw
from forked import fork
from runs import STEPS, TESTS, assert_same_run, bits, end, merge, run, run_data, steps_done, wait_for, write_run

TWO = {"devices": 2, "zero_stage": 3, "micro_batch": 2}


def torchrun(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", *options, "-m", "scalewright", "train", *arguments]
    return start(folder, command)


def start(folder: Path, command: list[str], **environ: str) -> subprocess.Popen[str]:
    base = {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **base, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_torchrun_trains_as_local_workers_do(tmp_path):
    data = run_data(tmp_path, layout=TWO, checkpoint={"at_end": True})
    local = run({**data, "out_dir": str(tmp_path / "local")}).out_dir
    file = write_run(tmp_path, data)
    process = torchrun(tmp_path, str(file), "--json")
    try:
        out, err = process.communicate(timeout=180)
    finally:
        end(process)
    assert process.returncode == 0, err
    assert bits(tmp_path / "out") == bits(local)
    assert json.loads(out)["step"] == STEPS  # one document, though two ranks ran


@pytest.mark.slow
def test_another_number_of_ranks_than_the_layout_says(tmp_path):
    file = write_run(tmp_path, run_data(tmp_path, layout={"devices": 4, "zero_stage": 3}))
    process = torchrun(tmp_path, str(file))
    try:
        _, err = process.communicate(timeout=180)
    finally:
        end(process)
    assert process.returncode != 0
    assert "torchrun started 2 ranks but layout.devices is 4" in err


@pytest.mark.slow
def test_a_restarted_attempt_resumes(tmp_path):
    """A rank is killed; torchrun starts all anew, and they go on from the checkpoint."""
    base = {"layout": TWO, "checkpoint": {"every": 4, "at_end": True}, "train": {"steps": 20}}
    control = run(run_data(tmp_path, **base, out_dir=str(tmp_path / "control"))).out_dir
    data = run_data(tmp_path, **merge(base, {"loss": {"python": "parts:fragile", "pause": 0.1}}))
    file = write_run(tmp_path, data)
    process = torchrun(tmp_path, str(file), options=("--max-restarts", "1"))
    import psutil

    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 6 or process.poll() is not None, 120, "six steps")
        ranks = [c for c in psutil.Process(process.pid).children() if "scalewright" in " ".join(c.cmdline())]
        assert len(ranks) == 2
        os.kill(ranks[1].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    finally:
        end(process)
    assert process.returncode == 0, err
    assert_same_run(tmp_path / "out", control)


def stop_after_two(file: str) -> None:
    result = sw.train(file, quiet=True, on_step=lambda row: "stop" if row["step"] == 2 else None)
    print(json.dumps(result.dump()))


def places() -> list[dict[str, str]]:
    """RANK, WORLD_SIZE and an address of two ranks, as a Kubernetes job sets them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    base = {"GLOO_SOCKET_IFNAME": "lo"}
    address = base | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [{**address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


@pytest.mark.skipif(sys.platform != "linux", reason="a fork server that forks")
def test_a_callback_stops_all_ranks_alike(tmp_path):
    """Rank 0 alone has the callback's answer; every rank saves and gets a result, so no agent restarts it."""
    file = write_run(tmp_path, run_data(tmp_path, layout=TWO, train={"steps": 400}))
    ranks = [fork(tmp_path, stop_after_two, str(file), **place) for place in places()]
    try:
        answers = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            end(rank)
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    assert [json.loads(out)["step"] for out, _ in answers] == [3, 3]
    assert (tmp_path / "out" / "checkpoints" / "step-00000003" / "COMMIT").exists()


@pytest.mark.slow
def test_ranks_that_nobody_runs_a_store_for(tmp_path):
    """Rank 0 runs the store itself."""
    file = write_run(tmp_path, run_data(tmp_path, layout=TWO, train={"steps": 3}))
    ranks = [start(tmp_path, [sys.executable, "-m", "scalewright", "train", str(file)], **place) for place in places()]
    try:
        answers = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            end(rank)
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    assert steps_done(tmp_path / "out") == 3
