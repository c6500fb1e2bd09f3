"""A Slurm cluster of several nodes on this machine, in a folder of its own: real daemons, pretend nodes.

    munged ◄── slurmctld ◄── slurmd -N n1, n2, ...        free ports, one slurm.conf, no root needed

Debian and Ubuntu: apt-get install --no-install-recommends slurm-wlm munge
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")

SETTINGS = """\
ClusterName=pretend
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
SlurmctldTimeout=10
SlurmdTimeout=6
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=spot Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs that aren't installed here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def ports_in_a_row(count: int) -> int:
    """The first of `count` ports that nobody listens on; others for two processes that ask at once."""
    for first in range(21000 + os.getpid() % 2000 * count, 60000, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")


class Cluster:
    """`with Cluster(4) as cluster: cluster.run("sinfo")`"""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.environ = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        host, first = socket.gethostname().split(".")[0], ports_in_a_row(self.nodes + 1)
        self._settle(SETTINGS.format(
            host=host, port=first, user=getpass.getuser(), folder=self.folder, nodes=self.nodes,
            first=first + 1, last=first + self.nodes,
        ))  # fmt: skip
        try:
            self._start("slurmctld", ["slurmctld", "-D", "-i"])
            for node in self._names():
                self.start_node(node)
            self.wait(lambda: self._states() == ["idle"] * self.nodes, 60, "idle nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _settle(self, settings: str) -> None:
        """Writes the settings and starts munged."""
        folder = self.folder
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(settings)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = {"socket": "sock", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        files = [f"--{option}={folder}/munge.{name}" for option, name in names.items()]
        self._start("munged", ["munged", "--foreground", "--force", f"--key-file={key}", *files])
        self.wait((folder / "munge.sock").exists, 20, "munged")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)

    def _names(self) -> list[str]:
        return [f"n{number + 1}" for number in range(self.nodes)]

    def _states(self) -> list[str]:
        return self.run("sinfo", "-N", "-h", "-p", "main", "-o", "%t", check=False).split()

    def start_node(self, node: str) -> None:
        """Starts a node's daemon."""
        self._start(node, ["slurmd", "-D", "-N", node])

    def kill_node(self, node: str) -> None:
        """A power cut: the node's daemon, its steps and their processes are gone at once."""
        import psutil

        self._daemons.pop(node).kill()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node and self._is_mine(process):
                    parent = process.parent()
                    process.kill()
                    if parent is not None and "slurmstepd" in " ".join(parent.cmdline()):
                        parent.kill()

    def _is_mine(self, process: Any) -> bool:
        return bool(process.environ().get("SLURM_CONF") == self.environ["SLURM_CONF"])

    def run(self, *command: str, check: bool = True, **options: Any) -> str:
        """A command's stdout; raises RuntimeError with its stderr where it fails."""
        done = subprocess.run(
            command, env={**self.environ, **options.pop("environ", {})}, text=True, capture_output=True,
            timeout=120, **options,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
        return done.stdout

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        words = self.run("scontrol", "show", "job", "-o", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_state(self, number: int, *states: str, seconds: float = 120) -> dict[str, str]:
        """The job, once it is in one of the states."""
        self.wait(lambda: self.job(number)["JobState"] in states, seconds, f"{states}: {self.job(number)}")
        return self.job(number)

    def skip_hold(self, number: int) -> None:
        """A requeued job waits for two minutes; from its end on for two seconds, that may be cut short."""
        self.wait_for_state(number, "PENDING")
        time.sleep(2.5)
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Waits until `done()`; fails with the controller's last lines."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                log = self.folder / "slurmctld.log"
                raise TimeoutError(f"{what}\n{log.read_text()[-3000:] if log.exists() else ''}")
            time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        if "slurmctld" in self._daemons:
            self.run("scancel", "--me", check=False)
            time.sleep(0.3)
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
