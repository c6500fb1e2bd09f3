"""Python's collector waits for chosen steps, and is as it was after a run."""

from __future__ import annotations

import gc
import os
import weakref

from runs import run, run_data
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.train import loop
from scalewright.train.loop import collect_garbage, garbage_at_steps
from scalewright.train.metrics.record import Clock
from scalewright.train.run import PRELOAD


class Knot:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


def test_knots_are_freed_at_chosen_steps(monkeypatch):
    monkeypatch.setattr(loop, "EVERY", 3)
    monkeypatch.setattr(loop, "is_forked", lambda: False)
    gc.unfreeze()  # what all tests imported (conftest.py); frozen again below
    knots = []
    with garbage_at_steps():
        for step in range(1, 8):
            knots.append(weakref.ref(Knot()))
            collect_garbage(step, everything=step == 7)
            alive = [number for number, knot in enumerate(knots, 1) if knot() is not None]
            assert alive == {1: [1], 2: [1, 2], 3: [], 4: [4], 5: [4, 5], 6: [], 7: []}[step]
        assert not gc.isenabled()
        assert gc.get_freeze_count()
    assert gc.isenabled()
    assert not gc.get_freeze_count()
    gc.freeze()  # of the tests, or a caller's own: it stays, and nothing is added that couldn't be thawed
    before = gc.get_freeze_count()
    with garbage_at_steps():
        kept = Knot()
        assert 0.99 * before < gc.get_freeze_count() <= before  # what is frozen may still end by its count
    assert 0.99 * before < gc.get_freeze_count() <= before
    knot = weakref.ref(kept)
    del kept
    gc.collect()
    assert knot() is None


def test_a_workers_imports_stay_frozen():
    """Those of the fork server: what a worker's collector looks at, it copies."""
    before, after, garbage_of_a_fork = run_local(_freeze_counts, (), 1, preload=PRELOAD)
    assert 0 < before == after
    assert garbage_of_a_fork == 0


def _freeze_counts(context: RankContext) -> tuple[int, int, int]:
    """Before and after a run's steps, and how many knots outlive a collection after a fork of the worker."""
    before = gc.get_freeze_count()
    with garbage_at_steps():
        pass
    after, knot = gc.get_freeze_count(), weakref.ref(Knot())
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    gc.collect()
    return before, after, int(knot() is not None)


def test_a_run_leaves_the_collector_as_it_was(tmp_path):
    """Off while steps are taken, on afterwards; also where a callback raised."""
    seen = []
    run(run_data(tmp_path, train={"steps": 3}), on_step=lambda row: seen.append(gc.isenabled()))
    assert seen == [False] * 3
    assert gc.isenabled()
    gc.disable()
    try:
        run(run_data(tmp_path, train={"steps": 4}))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_done_while_the_clock_stands_is_in_no_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("scalewright.train.metrics.record.time.perf_counter", lambda: now[0])
    clock = Clock()
    now[0] = 1.0
    with clock.stopped():
        now[0] = 6.0
    now[0] = 6.5
    assert clock.lap() == 1.5
    now[0] = 7.0
    assert clock.lap() == 0.5
