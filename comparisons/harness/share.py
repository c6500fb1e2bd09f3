"""A share of a core for each process, so that several hosts on one machine have processors of their own.

    core 0   ┌─ group 0: a process, or else its filler ─┐┌─ group 2 ─┐┌─ group 0 ─┐ ...
    core 1   ┌─ group 1 ─┐┌─ group 3 ─┐ ...                  each group has the same share at all times

A process that waits for a message would give its core to the others, which no host can do for another. So it
lies in a control group with a filler, which runs whenever the process doesn't, and nearly never else.

    shares(4) ──► groups, helpers ──► python share.py FOLDER -m MODULE ...: in the first group that is free
"""

from __future__ import annotations

import fcntl
import importlib
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
# Wakes up every 0.2 ms. After it the scheduler picks anew; otherwise the process that a message is for would
# wait for the clock's tick, some milliseconds, while a filler or another host's process runs.
TICK = """import ctypes, os, time
ctypes.CDLL(None).prctl(1, 9)  # ends with this script
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True: time.sleep(2e-4)"""
# Multiplies matrices as its process does: neighbours meet the same competition for caches and vector units
# while that process waits. 15 of 1,024 + 15 parts beside a process that runs.
FILL = """import ctypes, os, numpy
ctypes.CDLL(None).prctl(1, 9)
os.nice(19)
size = (384, 384)
a, b, c = numpy.ones(size, "f4"), numpy.ones(size, "f4"), numpy.ones(size, "f4")
while True: numpy.matmul(a, b, out=c)"""
FIRST = {"cpu.shares": 1 << 15, "cpu.weight": 10_000}  # 32 and 100 times what a group has
WARM_S, BURN_S = 4.0, 3.0  # of a measured share: until all have imported torch, and after


@contextmanager
def shares(processes: int, root: Path = GROUPS) -> Iterator[list[str]]:
    """Words that start Python with a share of a core of its own; raises OSError where that can't be had."""
    second = (root / "cgroup.controllers").exists()  # version 2; the first has a folder for each controller
    parent = root if second else root / "cpu"
    cores = sorted(os.sched_getaffinity(0))
    groups: list[Path] = []
    helpers: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="scalewright-shares-") as folder:
        try:
            if second:
                (root / "cgroup.subtree_control").write_text("+cpu")
            for core in cores:
                helpers.append(subprocess.Popen([sys.executable, "-c", TICK]))
                os.sched_setaffinity(helpers[-1].pid, {core})
            for number in range(processes):
                group, core = parent / f"scalewright-{os.getpid()}-{number}", cores[number % len(cores)]
                group.mkdir()
                groups.append(group)
                (Path(folder) / str(number)).write_text(f"{group}\n{core}\n")
                helpers.append(subprocess.Popen([sys.executable, "-c", FILL]))
                enter(group, core, helpers[-1].pid)
            groups.append(first_of_all(parent))
            yield [sys.executable, __file__, folder]
        finally:
            (parent / "cgroup.procs").write_text(str(os.getpid()))
            for helper in helpers:
                helper.kill()
                helper.wait()
            for group in groups:
                with suppress(OSError):  # of a process that hasn't ended
                    group.rmdir()


def first_of_all(parent: Path) -> Path:
    """A group that goes before the others, for this script, its launchers and their imports."""
    group = parent / f"scalewright-{os.getpid()}-first"
    group.mkdir()
    for name, weight in FIRST.items():
        if (group / name).exists():
            (group / name).write_text(str(weight))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def enter(group: Path, core: int, process: int) -> None:
    """Puts a process into a group and on a core."""
    (group / "cgroup.procs").write_text(str(process))
    os.sched_setaffinity(process, {core})


def measured_share(python: Sequence[str], processes: int) -> float:
    """The part of a core that each of so many processes gets while all of them compute."""
    started = [
        subprocess.Popen([*python, "-m", "harness.share"], cwd=Path(__file__).parent.parent, text=True,
                         stdout=subprocess.PIPE)
        for _ in range(processes)
    ]  # fmt: skip
    return sum(float(process.communicate()[0]) for process in started) / processes


def burn() -> None:
    """Computes, and prints the part of the time in which it could."""
    begin = time.monotonic()
    while time.monotonic() < begin + WARM_S:
        pass
    begin, ran = time.monotonic(), time.process_time()
    while time.monotonic() < begin + BURN_S:
        pass
    print((time.process_time() - ran) / (time.monotonic() - begin))


def run(folder: str, words: Sequence[str]) -> None:
    """Runs a module, `-m MODULE ARGUMENT...`, in the first group that no other process is in."""
    importlib.import_module("torch")  # with the launcher's weight
    for number in count():
        place = Path(folder) / str(number)
        held = place.open()  # until this process ends
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        group, core = place.read_text().split()
        enter(Path(group), int(core), os.getpid())
        sys.argv = list(words[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], sys.argv[2:])
    else:
        burn()
