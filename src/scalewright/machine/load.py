"""How much of this machine others keep busy, and whether a run's threads fit into the rest.

    mark() ── anything that takes a while (an import of torch) ── others_busy(mark)

    others = (busy seconds of all cores - CPU seconds of this process and its children) / seconds passed

Nothing waits for the measurement. One thread too many is far worse than one too few: the threads of a matrix
product meet at its end, so all wait for the one that has no core (measured: 0.2 s a step became 37 s).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from scalewright.machine.processor import Processor
from scalewright.spec.common.formatting import counted

TIMED = 0.25  # of the cores: where others keep more of them busy, timings aren't this machine's
LEAST_S = 0.3  # cores are accounted in ticks of 10 ms: a shorter time is too coarse to use
SLACK = 0.5  # cores that may be missing before it is worth a word


@dataclass(frozen=True)
class CpuMark:
    """Seconds of work done on this machine since it started: by all, and by this process and its children."""

    at_s: float
    all_s: float
    own_s: float


def mark() -> CpuMark:
    import psutil  # late: what it imports differs from system to system

    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Time of a guest is in `user`, too.
    busy = sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    cpu_s, process = 0.0, psutil.Process()
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            spent = member.cpu_times()
            cpu_s += spent.user + spent.system
    return CpuMark(time.perf_counter(), busy, cpu_s)


def others_busy(before: CpuMark, now: CpuMark | None = None, alike: int = 1) -> float | None:
    """Cores that others kept busy since `before`; None after too short a time.

    `alike`: processes of this run on this machine that work as this one does, itself included.
    """
    now = now or mark()
    if (seconds := now.at_s - before.at_s) < LEAST_S:
        return None
    run_s = alike * (now.own_s - before.own_s)
    return max(0.0, (now.all_s - before.all_s - run_s) / seconds)


def loaded(processor: Processor, others: float | None) -> str:
    """Words for others' work that moves timings; "" where there is too little of it, or where that isn't known. Time
    that a hypervisor took for others is in it."""
    cores = processor.logical_cores
    return f"others keep {others:.1f} of {cores} cores busy" if others and others > TIMED * cores else ""


def idle_cores(processor: Processor, others: float | None) -> float:
    """Of those that this process may use."""
    return min(float(processor.usable_cores), processor.logical_cores - (others or 0.0))


def fair_threads(processor: Processor, workers: int, others: float | None) -> int:
    """Threads of each worker that fit beside each other, and beside others' work: the rule of doctor and train."""
    return max(1, int(max(idle_cores(processor, others), 0.0) + SLACK) // workers)


def too_many_threads(processor: Processor, threads: int, workers: int, others: float | None) -> str | None:
    """One line if `workers` processes of `threads` threads need more cores than are idle; else None."""
    usable, idle = processor.usable_cores, idle_cores(processor, others)
    if threads * workers <= max(idle, 1.0 if threads * workers == 1 else 0.0) + SLACK:
        return None
    count = counted(threads, "threads")
    demand = f"{workers} workers of {count}" if workers > 1 else count
    cores = counted(usable, "cores")
    load = f", of which other work keeps {usable - max(idle, 0.0):.1f} busy" if idle < usable - 0.2 else ""
    fair = fair_threads(processor, workers, others)
    advice = [f"set OMP_NUM_THREADS={fair}"] if fair < threads else []
    if load:
        advice.append("stop the other work")
    if threads * workers > usable and fair >= threads:
        advice.append("use fewer workers")
    return f"{demand} on {cores}{load}: steps will be slow and uneven; {' or '.join(advice)}"
