"""`launch mpi` and `launch ssh` with a real mpirun and a real sshd, on this machine alone.

stopped ──► 75 ──► the same command again ──► the bits of an undisturbed run      a rank killed: the same
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs import (
    TESTS,
    alive,
    assert_same_bits,
    bits,
    descendants,
    end,
    events,
    merge,
    run,
    run_data,
    steps_done,
    wait_for,
    weights,
    write_run,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
MPIRUNS = {kind: path for kind in ("openmpi", "mpich") if (path := shutil.which(f"mpirun.{kind}"))}
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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


def finish(process: subprocess.Popen[str], seconds: float = 120) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        end(process)


def stop_then_kill_then_finish(folder: Path, control: str, target: str, **environ: str) -> None:
    """Three starts of one run: asked to stop, robbed of a rank, left alone."""
    out = folder / "out"
    process = launch(folder, target, **environ)
    wait_for(lambda: steps_done(out) >= 3 or process.poll() is not None, 120, "three steps")
    family = [*descendants(process.pid), *ranks_of(folder)]
    process.send_signal(signal.SIGTERM)
    text = finish(process)
    assert process.returncode == 75, text
    wait_for(lambda: not alive(family), 10, "the end of all processes")
    (stop,) = events(out, "stop")

    process = launch(folder, target, **environ)
    after = stop["step"] + 6
    wait_for(lambda: steps_done(out) >= after or process.poll() is not None, 120, "six steps more")
    ranks = ranks_of(folder)
    assert len(ranks) == 2, process.poll()
    os.kill(ranks[1], signal.SIGKILL)
    text = finish(process)
    assert process.returncode not in (0, 75), text
    wait_for(lambda: ranks_of(folder) == [], 30, "the other rank to leave")

    process = launch(folder, target, **environ)
    text = finish(process)
    assert process.returncode == 0, text
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))
    assert len(events(out, "resume")) == 2


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_mpirun(tmp_path: Path, control: str, kind: str) -> None:
    if kind not in MPIRUNS:
        pytest.skip(f"mpirun.{kind} isn't installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").write_text(f'#!/bin/sh\nexec {MPIRUNS[kind]} "$@"\n')
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    write_run(tmp_path, data_of(tmp_path, hosts=["localhost"]))
    stop_then_kill_then_finish(tmp_path, control, "mpi", PATH=path, **as_root)


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
    """The settings of ssh for a daemon of our own; nothing of the system's is changed."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("sshd isn't installed")
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nAcceptEnv PYTHONPATH\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\nPort {port}\nUser {getpass.getuser()}\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nBatchMode yes\nLogLevel ERROR\n"
    )
    made = os.geteuid() == 0 and not Path("/run/sshd").exists()
    if made:  # where a daemon that root starts drops its rights
        Path("/run/sshd").mkdir()
    log = (folder / "log").open("w")
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        probe = ["ssh", "-F", str(folder / "ssh_config"), "127.0.0.1", "true"]
        for _ in range(50):
            if subprocess.run(probe, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshd takes nobody here: {(folder / 'log').read_text()[-300:]}")
        yield folder / "ssh_config"
    finally:
        daemon.terminate()
        daemon.wait()
        if made:
            Path("/run/sshd").rmdir()


def ssh_site(config: Path) -> dict[str, Any]:
    return {
        "hosts": ["127.0.0.1", "localhost"],
        "options": ["-F", str(config)],
        "env": {"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"},
    }


def test_ssh(tmp_path: Path, control: str, sshd: Path) -> None:
    write_run(tmp_path, data_of(tmp_path, **ssh_site(sshd)))
    stop_then_kill_then_finish(tmp_path, control, "ssh")


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
