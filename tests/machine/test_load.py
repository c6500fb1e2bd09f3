"""Others' work on this machine, and threads that don't fit beside it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from scalewright.machine.load import CpuMark, fair_threads, loaded, mark, others_busy, too_many_threads
from scalewright.machine.processor import Processor

SLOW = "steps will be slow and uneven"
FOUR = Processor("a CPU", 4, 4, 4, None, (), 1, 1 << 34, 1 << 33, None)


def test_own_work_is_not_others_work():
    """A second on 4 cores: 3 core seconds in all, 1 of them this process's."""
    before, after = CpuMark(0.0, 100.0, 7.0), CpuMark(1.0, 103.0, 8.0)
    assert others_busy(before, after) == pytest.approx(2)
    assert others_busy(before, after, alike=2) == pytest.approx(1)
    assert others_busy(before, CpuMark(0.1, 100.4, 7.0)) is None
    assert others_busy(before, CpuMark(1.0, 100.5, 8.0)) == 0


def test_a_childs_work_is_this_runs():
    """A process that this one starts counts as its own, as the workers' fork server does."""
    before = mark()
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", spin])
    try:
        end = time.monotonic() + 60
        while (after := mark()).own_s - before.own_s < 0.3:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert after.all_s - before.all_s >= 0.2, "ticks"


@pytest.mark.parametrize(
    ("threads", "workers", "others", "words"),
    [
        (4, 1, 0.0, None),
        (4, 1, None, None),
        (2, 2, 0.4, None),
        (1, 1, 4.0, None),  # nothing to do about it
        (4, 1, 2.1, f"4 threads on 4 cores, of which other work keeps 2.1 busy: {SLOW}; "
         "set OMP_NUM_THREADS=2 or stop the other work"),
        (2, 4, 0.0, f"4 workers of 2 threads on 4 cores: {SLOW}; set OMP_NUM_THREADS=1"),
        (1, 8, 0.0, f"8 workers of 1 thread on 4 cores: {SLOW}; use fewer workers"),
    ],
)  # fmt: skip
def test_threads_against_idle_cores(threads, workers, others, words):
    assert too_many_threads(FOUR, threads, workers, others) == words


@pytest.mark.parametrize(
    ("processor", "workers", "others", "threads"),
    [
        (FOUR, 1, 0.0, 4),
        (FOUR, 2, None, 2),
        (FOUR, 3, 0.0, 1),
        (FOUR, 8, 0.0, 1),
        (FOUR, 1, 2.1, 2),
        (FOUR, 1, 9.0, 1),
        (replace(FOUR, logical_cores=64), 2, 30.0, 2),  # a container's share of a host that others use
        (replace(FOUR, logical_cores=64), 1, 62.0, 2),
    ],
)
def test_fair_threads_are_never_too_many(processor, workers, others, threads):
    assert fair_threads(processor, workers, others) == threads
    if threads > 1:
        assert too_many_threads(processor, threads, workers, others) is None
    advice = too_many_threads(processor, threads + 1, workers, others)
    assert advice is not None
    assert f"OMP_NUM_THREADS={threads}" in advice


@pytest.mark.parametrize(("others", "words"), [
    (None, ""), (0.0, ""), (1.0, ""), (1.1, "others keep 1.1 of 4 cores busy"), (9.0, "others keep 9.0 of 4 cores busy")
])  # fmt: skip
def test_from_when_on_timings_are_not_judged(others, words):
    assert loaded(FOUR, others) == words
