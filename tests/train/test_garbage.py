"""Python's collector waits for chosen steps, and is as it was after a run."""

from __future__ import annotations

import gc
import weakref

from runs import run, run_data
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.train import garbage
from scalewright.train.garbage import collect_garbage, garbage_at_steps
from scalewright.train.run import PRELOAD


class Knot:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


def test_knots_are_freed_at_chosen_steps(monkeypatch):
    monkeypatch.setattr(garbage, "EVERY", 3)
    thawed = []
    monkeypatch.setattr(gc, "unfreeze", lambda: thawed.append(True))
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
    assert thawed


def test_a_workers_imports_stay_frozen():
    """Those of the fork server: what a worker's collector looks at, it copies."""
    assert run_local(_freeze_count, (), 1, preload=PRELOAD) > 100_000


def _freeze_count(context: RankContext) -> int:
    with garbage_at_steps():
        pass
    return gc.get_freeze_count()


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
