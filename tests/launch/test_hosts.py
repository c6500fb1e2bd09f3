"""mpirun and ssh at their edges, with a real mpirun and a real sshd on this machine (stops: test_stops.py).

ranks that nobody tells where to meet ──► rank 0 broadcasts it     ssh killed ──► the ranks save and leave
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.launch import sshd as daemon
from tests.launch.launchers import LOOPBACK
from tests.launch.sshd import free_port

from runs import TESTS, alive, bits, descendants, end, events, merge, run, run_data, steps_done, wait_for, write_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MPIRUNS = {kind: path for kind in ("openmpi", "mpich") if (path := shutil.which(f"mpirun.{kind}"))}


def data_of(folder: Path, **site: Any) -> dict[str, Any]:
    """A tiny run of two ranks, slow enough to be disturbed."""
    return run_data(
        folder,
        layout={"devices": 2, "zero_stage": 3, "micro_batch": 2},
        loss={"python": "parts:fragile", "pause": 0.1},
        train={"steps": 40},
        checkpoint={"every": 4, "at_end": True},
        launch={"python": sys.executable, "interface": LOOPBACK, "port": free_port(), **site},
    )


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an undisturbed run."""
    quick = {"loss": {"pause": 0.0}, "checkpoint": {"every": 0}}
    return run(merge(data_of(tmp_path_factory.mktemp("control")), quick)).out_dir


def launch(folder: Path, target: str, **environ: str) -> subprocess.Popen[str]:
    """`launch TARGET run.yaml --submit`, which stays until the run ends."""
    always = {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "scalewright", "launch", target, "run.yaml", "--submit"], cwd=folder,
        env={**os.environ, **always, **environ}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def ranks_of(folder: Path) -> list[int]:
    """Processes that train in the folder, and aren't the launcher's or torchrun's own."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            ours = words[1:4] == ["-u", "-m", "scalewright"] or words[1:3] == ["-m", "scalewright"]
            if ours and "train" in words and process.cwd() == str(folder):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_rank_zero_broadcasts_its_address(tmp_path: Path, control: str, kind: str) -> None:
    """mpirun by hand with no MASTER_ADDR; the ranks are made to believe that they are on two hosts."""
    if kind not in MPIRUNS:
        pytest.skip(f"mpirun.{kind} isn't installed")
    pytest.importorskip("mpi4py", reason="mpi4py isn't installed")
    write_run(tmp_path, merge(data_of(tmp_path), {"loss": {"pause": 0.0}}))
    local = {"openmpi": "OMPI_COMM_WORLD_LOCAL_SIZE", "mpich": "MPI_LOCALNRANKS"}[kind]
    (tmp_path / "rank.sh").write_text(
        f"#!/bin/sh\nunset {local}\nexec {sys.executable} -m scalewright train run.yaml\n"
    )
    environ = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": str(TESTS),
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK,
    }  # fmt: skip
    more = ["--oversubscribe"] if kind == "openmpi" else []
    done = subprocess.run(
        [MPIRUNS[kind], "-np", "2", *more, "sh", "rank.sh"], cwd=tmp_path, env={**os.environ, **environ},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if "mpi4py is another MPI's" in done.stderr:
        pytest.skip("mpi4py here is another MPI's")
    assert done.returncode == 0, done.stderr
    assert bits(tmp_path / "out") == bits(control)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The settings of ssh for a daemon of our own."""
    if reason := daemon.missing():
        pytest.skip(reason)
    with daemon.daemon(tmp_path_factory.mktemp("sshd")) as settings:
        yield settings


def ssh_site(config: Path) -> dict[str, Any]:
    return {
        "hosts": ["127.0.0.1", "localhost"],
        "options": ["-F", str(config)],
        "preflight": "warn",  # both are this machine
        "env": {"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"},
    }


def test_killed_ssh_leaves_no_orphans(tmp_path: Path, sshd: Path) -> None:
    """Neither the script nor its ssh live on to tell the hosts; the ranks save and leave all the same."""
    write_run(tmp_path, merge(data_of(tmp_path, **ssh_site(sshd)), {"train": {"steps": 2000}}))
    process = launch(tmp_path, "ssh")
    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 3 or process.poll() is not None, 120, "three steps")
        ranks, family = ranks_of(tmp_path), [process.pid, *descendants(process.pid)]
        assert len(ranks) == 2
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: alive(ranks) == [], 60, "the ranks to leave")
    finally:
        end(process)
    (stop,) = events(tmp_path / "out", "stop")
    assert (tmp_path / "out" / "checkpoints" / f"step-{stop['step']:08d}" / "COMMIT").exists()
