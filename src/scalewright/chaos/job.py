"""One command that trains, from outside: its processes, how far it is, how it ended, and what it left behind.

scalewright train run.yaml          the command, in a session of its own
└── fork server ── ranks            found by who started whom
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from scalewright.launch.settings import present_environment
from scalewright.spec.common.jsonl import read_jsonl

INJECTED = Path(__file__).parent / "injected"
LEAVE_S = 15.0  # that processes of a run that has ended may take to leave


class Job:
    """A run's command, started."""

    def __init__(self, file: Path, folder: Path, ranks: int, patience_s: float, before: Sequence[str] = ()) -> None:
        """`file`: the run file; `folder`: its out_dir; `patience_s`: after which a rank gives up another; `before`:
        words in front of the command."""
        self.folder, self.world, self.patience_s = folder, ranks, patience_s
        inside = file.parent / "inside"
        self.commands = inside / "commands"
        self.commands.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(INJECTED / "sitecustomize.py", inside / "sitecustomize.py")
        environ = present_environment()
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(inside), environ.get("PYTHONPATH")]))
        self.log = file.parent / "train.log"
        command = [sys.executable, "-m", "scalewright", "train", str(file)]
        if before:  # a network of its own, whose loopback is down at first
            command = [*before, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.started = time.time()

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; None where it didn't come."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def below(self) -> list[int]:
        """Every process of its session but itself, in the order in which they were started."""
        found = []
        for process in psutil.process_iter(["pid", "create_time", "status"]):
            with suppress(OSError, psutil.Error):
                alive = process.info["status"] != psutil.STATUS_ZOMBIE
                if alive and process.pid != self.pid and os.getsid(process.pid) == self.pid:
                    found.append((process.info["create_time"], process.pid))
        return [pid for _, pid in sorted(found)]

    def ranks(self) -> list[int]:
        """The ranks' processes; the command itself where it trains alone, or before there are any."""
        if self.world == 1:
            return [self.pid]
        servers = {pid for pid in self.below() if _is_server(pid)}
        forked = [pid for pid in self.below() if pid not in servers and _parent(pid) in servers]
        return forked[: self.world] or [self.pid]

    def tell(self, pid: int, what: str) -> None:
        """Asks the code inside a process to do something to it."""
        (self.commands / str(pid)).write_text(what)

    def kill_all(self) -> None:
        """Kills every process of the run at once."""
        for pid in [self.pid, *self.below()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def orphans(self) -> list[int]:
        """Processes that are left when the command has ended, after the time that they may take; they are killed."""
        end = time.monotonic() + LEAVE_S
        while (left := self.below()) and time.monotonic() < end:
            time.sleep(0.1)
        self.kill_all()
        return left


def _is_server(pid: int) -> bool:
    """Whether it is multiprocessing's fork server itself, which the command started."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        here = "multiprocessing.forkserver" in " ".join(process.cmdline())
        parent = process.parent()
        return here and (parent is None or "multiprocessing.forkserver" not in " ".join(parent.cmdline()))
    return False


def _parent(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0


def steps_done(folder: Path) -> int:
    """The newest step in a run's metrics; 0 for none."""
    rows = read_jsonl(folder / "metrics.jsonl")
    steps = [step for row in rows if row.get("kind") == "train" and type(step := row.get("step")) is int]
    return max(steps, default=0)


def begun(folder: Path) -> tuple[int, int]:
    """How often a run was opened, and the step that it went on from the last time."""
    opened = [event for event in read_jsonl(folder / "events.jsonl") if event.get("kind") in ("start", "resume")]
    step = opened[-1].get("step") if opened else 0
    return len(opened), step if type(step) is int else 0
