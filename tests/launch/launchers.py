"""Every way to start a run on this machine, and to ask it to stop as its users would.

LAUNCHERS[name].begin(folder) ──► Attempt: ask("SIGTERM") ──► finish() -> the exit code that a user sees
                                           ◄── again(): the same command, or the scheduler's own requeue

Plain launchers (torchrun, srun, mpirun) start `scalewright train`; `launch X` starts what it wrote for them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.launch import ray_cluster, slurm_cluster, sshd

from runs import TESTS, end

ONE_MACHINE = {"preflight": "warn"}  # pretend nodes meet at an address at which each finds itself
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
PYTHON = sys.executable
TRAIN = (PYTHON, "-m", "scalewright", "train", "run.yaml")
RANKS = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH")])),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": LOOPBACK,
}
REQUEUED = "requeued"


class Services:
    """Slurm, sshd and Ray: each started when it is first asked for, all ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running = ExitStack()

    @cached_property
    def slurm(self) -> slurm_cluster.Cluster:
        """A cluster of two nodes."""
        return self._running.enter_context(slurm_cluster.Cluster(2))

    @cached_property
    def sshd(self) -> Path:
        """The settings of ssh."""
        folder = self.folder / "sshd"
        folder.mkdir()
        return self._running.enter_context(sshd.daemon(folder))

    @cached_property
    def ray(self) -> str:
        """The address of a cluster of two nodes."""
        return self._running.enter_context(ray_cluster.two_nodes(RANKS))

    def close(self) -> None:
        """Ends what runs."""
        self._running.close()


class Attempt:
    """A run that processes of this machine started; `begin` starts it again."""

    def __init__(self, folder: Path, processes: Sequence[subprocess.Popen[str]], begin: Callable[[], Attempt]) -> None:
        self.folder, self.processes, self.again = folder, processes, begin
        self.text = ""

    def ask(self, way: str) -> None:
        """A signal to what was started; a Ctrl-C reaches all that runs in the terminal."""
        first = self.processes[0]
        if way == "SIGINT":
            with suppress(ProcessLookupError):  # it has just left
                os.killpg(first.pid, signal.SIGINT)
        else:
            first.send_signal(signal.Signals[way])

    @property
    def over(self) -> bool:
        """Whether its first process has left."""
        return self.processes[0].poll() is not None

    def finish(self, seconds: float) -> int | str:
        """The exit code of what was started, as a shell shows it; the others' are in `codes`."""
        try:
            self.text = "".join(process.communicate(timeout=seconds)[0] for process in self.processes)
        finally:
            self.end()
        return self.codes[0]

    @property
    def codes(self) -> list[int]:
        """Of each process that has ended; 128 and the number of the signal that killed it."""
        codes = [process.returncode for process in self.processes if process.returncode is not None]
        return [128 - code if code < 0 else code for code in codes]

    def end(self) -> None:
        """Ends what is left of it."""
        for process in self.processes:
            if process.poll() is None:
                end(process)


class Step(Attempt):
    """Tasks that `srun` started: Slurm's own command sends them signals, and the terminal its Ctrl-C."""

    cluster: slurm_cluster.Cluster

    def ask(self, way: str) -> None:
        """As a user asks Slurm; a SIGTERM to srun itself would end the tasks at once."""
        if way == "SIGINT":
            super().ask(way)
        else:
            (number,) = self.cluster.run("squeue", "-ho", "%A").split()
            self.cluster.run("scancel", f"--signal={way.removeprefix('SIG')}", number)


class Batch(Attempt):
    """A batch job of Slurm, which was started `restarts` times again."""

    def __init__(self, folder: Path, cluster: slurm_cluster.Cluster, number: int, restarts: int = 0) -> None:
        super().__init__(folder, [], self._again)
        self.cluster, self.number, self.restarts = cluster, number, restarts
        self._over, self._ask_again = False, 0.0

    def ask(self, way: str) -> None:
        """As a user asks Slurm."""
        self.cluster.run("scancel", f"--signal={way.removeprefix('SIG')}", str(self.number))

    @property
    def over(self) -> bool:
        """Whether Slurm started it again, or ended it; not asked more often than twice a second."""
        if not self._over and time.monotonic() >= self._ask_again:
            job = self.cluster.job(self.number)
            self._over = self._requeued(job) or job["JobState"] in ("COMPLETED", "FAILED", "CANCELLED")
            self._ask_again = time.monotonic() + 0.5
        return self._over

    def _requeued(self, job: Mapping[str, str]) -> bool:
        return int(job["Restarts"]) > self.restarts

    def finish(self, seconds: float) -> int | str:
        """The script's exit code, or that the job was requeued."""
        try:
            self.cluster.wait(lambda: self.over, seconds, "the job's end")
        finally:
            self.text = "".join(path.read_text() for path in self.folder.glob("*.log"))
        job = self.cluster.job(self.number)
        code, number = map(int, job["ExitCode"].split(":"))
        return REQUEUED if self._requeued(job) else code or (128 + number if number else 0)

    def _again(self) -> Attempt:
        """Slurm's own requeue, or a new job after an end."""
        if not self._requeued(self.cluster.job(self.number)):
            return submit(self.folder, self.cluster)
        self.cluster.skip_hold(self.number)
        return Batch(self.folder, self.cluster, self.number, self.restarts + 1)

    def end(self) -> None:
        """Ends the job."""
        self.cluster.run("scancel", str(self.number), check=False)


@dataclass(frozen=True)
class Launcher:
    """One way. `keys`: of `launch:` in the run file of a folder; `missing`: why it can't be tried here."""

    name: str
    command: tuple[str, ...] = TRAIN
    version: tuple[str, ...] = ()
    missing: Callable[[], str] = lambda: ""
    keys: Callable[[Services, Path], dict[str, Any]] = lambda services, folder: {}
    environ: Callable[[Services], Mapping[str, str]] = lambda services: {}
    ranks: int = 2
    restarts: bool = False  # a rank that was killed, by itself

    def begin(self, folder: Path, services: Services) -> Attempt:
        """Starts the run.yaml of the folder, which has `keys`."""
        environ = {**os.environ, **RANKS, **self.environ(services)}
        if self.name == "launch slurm":
            return submit(folder, services.slurm)
        if self.name == "launch ray":  # by hand, as a user does on a node of the cluster
            words = [PYTHON, "-m", "scalewright", "launch", "ray", "run.yaml", "--force"]
            subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True)
        ranks: list[dict[str, str]] = [{}]
        if self.name == "ranks by hand":
            meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(sshd.free_port())}
            ranks = [{**meet, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
        processes = [_start(self.command, folder, {**environ, **rank}) for rank in ranks]
        kind = Step if self.name == "srun" else Attempt
        attempt = kind(folder, processes, lambda: self.begin(folder, services))
        if isinstance(attempt, Step):
            attempt.cluster = services.slurm
        return attempt


def _start(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """In a session of its own, as in a terminal of its own: under nohup a Ctrl-C would be ignored."""
    return subprocess.Popen(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=_hear_interrupts,
    )  # fmt: skip


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def submit(folder: Path, cluster: slurm_cluster.Cluster) -> Batch:
    """`launch slurm --submit`."""
    return Batch(folder, cluster, int(cluster.run(*_launch("slurm"), cwd=folder, environ=RANKS).split()[-1]))


def _launch(target: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "scalewright", "launch", target, "run.yaml", "--submit", "--force")


def _site(**more: Any) -> Callable[[Services, Path], dict[str, Any]]:
    return lambda services, folder: {"python": PYTHON, "interface": LOOPBACK, "port": sshd.free_port(), **more}


def _mpi(kind: str, name: str) -> list[Launcher]:
    """Plain, and by `launch mpi`, for which this mpirun is the first on PATH."""
    mpirun = shutil.which(f"mpirun.{kind}")

    def missing() -> str:
        return "" if mpirun else f"mpirun.{kind} isn't installed"

    def environ(services: Services) -> dict[str, str]:
        folder = services.folder / kind
        if not folder.exists():
            folder.mkdir()
            if kind == "openmpi":
                (folder / "mpirun").symlink_to(str(mpirun))  # it says what it is by its name
            else:
                (folder / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')  # it looks beside itself
                (folder / "mpirun").chmod(0o755)
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**as_root, "PATH": f"{folder}:{os.environ['PATH']}"}

    version, more = (str(mpirun), "--version"), ["--oversubscribe"] if kind == "openmpi" else []
    plain = (str(mpirun), "-np", "2", *more, *TRAIN)
    hosts = _site(hosts=["localhost"])
    return [
        Launcher(f"mpirun, {name}", plain, version, missing, environ=environ),
        Launcher(f"launch mpi, {name}", _launch("mpi"), version, missing, hosts, environ),
    ]


def _slurm_missing() -> str:
    return f"Slurm isn't installed: {', '.join(gone)}" if (gone := slurm_cluster.missing()) else ""


def _ssh_keys(services: Services, folder: Path) -> dict[str, Any]:
    reached = {"hosts": ["127.0.0.1", "localhost"], "options": ["-F", str(services.sshd)]}
    return {**_site()(services, folder), **reached, **ONE_MACHINE, "env": RANKS}


def _srun_environ(services: Services) -> dict[str, str]:
    # Pretend nodes have names that nobody can resolve.
    return {**services.slurm.environ, **RANKS, "MASTER_ADDR": "127.0.0.1"}


AGENT = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *TRAIN[1:])
SRUN = ("srun", "-N2", "-n2", "--ntasks-per-node=1", *TRAIN)
SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SLURM_VERSION = (shutil.which("slurmctld", path=SBIN) or "slurmctld", "-V")  # srun wants a cluster first
LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        Launcher("one process", ranks=1),
        Launcher("local workers"),
        Launcher("ranks by hand"),
        Launcher("torchrun", AGENT),
        Launcher("launch torchrun", _launch("torchrun"), keys=_site(), restarts=True),
        Launcher(
            "srun", SRUN, SLURM_VERSION, _slurm_missing, lambda services, folder: ONE_MACHINE, _srun_environ
        ),
        Launcher(
            "launch slurm", (), SLURM_VERSION, _slurm_missing,
            _site(nodes=2, env={"MASTER_ADDR": "127.0.0.1"}, **ONE_MACHINE), restarts=True,
        ),
        *_mpi("openmpi", "Open MPI"),
        *_mpi("mpich", "MPICH"),
        Launcher("launch ssh", _launch("ssh"), ("ssh", "-V"), sshd.missing, _ssh_keys, restarts=True),
        Launcher(
            "launch ray", (PYTHON, "tiny.ray.py"), (), ray_cluster.missing,
            lambda services, folder: {"interface": LOOPBACK, "env": RANKS, "workdir": str(folder)},
            lambda services: {"RAY_ADDRESS": services.ray}, restarts=True,
        ),
    )
}  # fmt: skip


def family(folder: Path) -> list[int]:
    """Every process that works in the folder: scripts, launchers, agents and ranks."""
    import psutil

    members = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return members
