"""The faults: what each one is, how it is done to a run's processes, and what it needs of this machine.

    kind      what happens                                                            then
    kill      a rank is killed (SIGKILL)                                              the run ends
    launcher  the process that started the ranks is killed                            the run ends
    node      all processes of the run are killed at once                             the run ends
    stop      a rank is stopped (SIGSTOP) until the others give it up                 the run ends
    memory    a rank is out of memory: MemoryError in its main thread                 the run ends
    nan       a weight becomes NaN on a rank                                          the run ends
    preempt   the run is asked to leave (SIGTERM)                                     it saves, and ends with 75
    damage    the newest checkpoint is damaged, and all processes are killed          the run ends
    disk      files can't grow beyond 4 KiB for two seconds (RLIMIT_FSIZE)            it ends, or goes on
    storage   the run's folder is away for two seconds                                it ends, or goes on
    network   the interface of the ranks is down for some seconds (a namespace)       it ends, or goes on
    slow      a rank gets a tenth of its time for two seconds (SIGSTOP, SIGCONT)      it goes on

No fault takes this machine's memory or disk: memory is an exception, a full disk a limit of the run's own processes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from scalewright.chaos.job import Job
from scalewright.checkpoint.format import committed
from scalewright.spec.errors import UserError, unknown

HELD_S = 2.0  # seconds of a disk, a folder or a rank that comes back
SMALL = 4096  # bytes that a file may grow to on a full disk
DUTY = 0.1  # of its time that a slow rank gets
Then = Literal["ends", "may end", "goes on"]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what it does to a job, in words and in fact, and what the run does then."""

    words: str
    then: Then
    do: Callable[[Job, random.Random], None]
    least_saves: int = 0  # checkpoints that must be there
    least_ranks: int = 1


@dataclass(frozen=True)
class Fault:
    """A fault that was drawn: after so many more steps and seconds."""

    number: int
    kind: str
    after_steps: int
    delay_s: float

    def random(self, seed: int) -> random.Random:
        """Its own numbers: which rank, which file, which byte."""
        return random.Random(f"{seed}/{self.number}/{self.kind}")


def draw(seed: int, count: int, kinds: Sequence[str], most_steps: int) -> list[Fault]:
    """`count` faults, all kinds about equally often: the same for the same seed, kinds and steps."""
    numbers = random.Random(f"{seed}/{','.join(kinds)}/{most_steps}")
    order: list[str] = []
    while len(order) < count:
        order += numbers.sample(list(kinds), len(kinds))
    return [
        Fault(number, kind, numbers.randint(1, most_steps), numbers.random() * 0.3)
        for number, kind in enumerate(order[:count], 1)
    ]


def choose(asked: Sequence[str], ranks: int) -> tuple[list[str], dict[str, str]]:
    """The kinds to draw from, and those that can't be had here with the reason; raises UserError for a kind that
    nobody knows, and where none is left."""
    for name in asked:
        if name not in KINDS:
            raise unknown("fault", name, list(KINDS), "--kinds", "see `scalewright chaos --help`")
    wanted = list(asked) or list(KINDS)
    missing = {name: why for name in wanted if (why := unavailable(name, ranks))}
    kinds = [name for name in wanted if name not in missing]
    if not kinds:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise UserError(f"none of these faults can be had here: {reasons}", "--kinds", "choose other kinds")
    return kinds, missing


def unavailable(name: str, ranks: int) -> str:
    """Why a kind can't be had on this machine with so many ranks; empty where it can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if ranks < KINDS[name].least_ranks:
        return "one process is nobody's peer: it needs layout.devices=2 or more"
    if name == "network" and not namespace():
        return (
            "it needs a network namespace of its own: `unshare --net` as root, or `unshare -r --net`, is refused here"
        )
    return ""


@cache
def namespace() -> tuple[str, ...]:
    """The words before a command that give it a network of its own; empty where that isn't allowed."""
    for words in (("unshare", "--net"), ("unshare", "--map-root-user", "--net")):
        if shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip"):
            done = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True, timeout=20)
            if done.returncode == 0:
                return words
    return ()


def _kill(job: Job, numbers: random.Random) -> None:
    _signal(numbers.choice(job.ranks()), signal.SIGKILL)


def _launcher(job: Job, numbers: random.Random) -> None:
    _signal(job.pid, signal.SIGKILL)


def _node(job: Job, numbers: random.Random) -> None:
    job.kill_all()


def _stop(job: Job, numbers: random.Random) -> None:
    _signal(numbers.choice(job.ranks()), signal.SIGSTOP)


def _preempt(job: Job, numbers: random.Random) -> None:
    _signal(job.pid, signal.SIGTERM)


def _memory(job: Job, numbers: random.Random) -> None:
    job.tell(numbers.choice(job.ranks()), "memory")


def _nan(job: Job, numbers: random.Random) -> None:
    job.tell(numbers.choice(job.ranks()), "nan")


def _slow(job: Job, numbers: random.Random) -> None:
    rank, end = numbers.choice(job.ranks()), time.monotonic() + HELD_S
    while time.monotonic() < end:
        _signal(rank, signal.SIGSTOP)
        time.sleep(0.1)
        _signal(rank, signal.SIGCONT)
        time.sleep(0.1 * DUTY / (1 - DUTY))


def _disk(job: Job, numbers: random.Random) -> None:
    import resource

    def limit(size: int | None) -> None:
        for pid in [*job.ranks(), *job.below()]:
            with suppress(OSError, ValueError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    limit(SMALL)
    _wait(job, HELD_S)
    limit(None)


def _storage(job: Job, numbers: random.Random) -> None:
    away = job.folder.with_name(f"{job.folder.name}.away")
    os.rename(job.folder, away)
    _wait(job, HELD_S)
    stub = job.folder.with_name(f"{job.folder.name}.stub-{numbers.randrange(1 << 30):08x}")
    with suppress(FileNotFoundError):  # what the run made anew where nothing was
        os.rename(job.folder, stub)
    os.rename(away, job.folder)


def _network(job: Job, numbers: random.Random) -> None:
    seconds = numbers.choice([1.0, 3.0, 1.5 * job.patience_s])
    _link(job, "down")
    _wait(job, seconds)
    _link(job, "up")


def _link(job: Job, state: str) -> None:
    inside = ["nsenter", f"--target={job.pid}", "--net"]
    inside += ["--user", "--preserve-credentials"] if "--map-root-user" in namespace() else []
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([*inside, "ip", "link", "set", "lo", state], capture_output=True, timeout=20)


def _damage(job: Job, numbers: random.Random) -> None:
    """A byte of a file of the newest checkpoint, or its end, once nobody writes there."""
    job.kill_all()
    job.wait(20.0)
    newest = committed(job.folder / "checkpoints")[0]
    path = numbers.choice(sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    place = numbers.randrange(len(content))
    if numbers.random() < 0.3:
        del content[place:]
    else:
        content[place] ^= 1 << numbers.randrange(8)
    path.write_bytes(content)


def _wait(job: Job, seconds: float) -> None:
    """So long, or until the run has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and job.code() is None:
        time.sleep(0.05)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def saves(folder: Path) -> int:
    """Checkpoints of a run that are there."""
    return len(committed(folder / "checkpoints"))


KINDS: dict[str, Kind] = {
    "kill": Kind("a rank is killed", "ends", _kill),
    "launcher": Kind("the process that started the ranks is killed", "ends", _launcher, least_ranks=2),
    "node": Kind("all processes are killed at once", "ends", _node),
    "stop": Kind("a rank is stopped until the others give it up", "ends", _stop, least_ranks=2),
    "memory": Kind("a rank is out of memory", "ends", _memory),
    "nan": Kind("a weight becomes NaN", "ends", _nan, least_saves=1),
    "preempt": Kind("the run is asked to leave", "ends", _preempt),
    "damage": Kind("the newest checkpoint is damaged, and all is killed", "ends", _damage, least_saves=2),
    "disk": Kind("files can't grow for two seconds", "may end", _disk),
    "storage": Kind("the run's folder is away for two seconds", "may end", _storage),
    "network": Kind("the ranks' network is down for some seconds", "may end", _network, least_ranks=2),
    "slow": Kind("a rank gets a tenth of its time for two seconds", "goes on", _slow),
}
