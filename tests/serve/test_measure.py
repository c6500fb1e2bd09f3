"""What is measured of an engine is what its steps did, and a rehearsal is the engine's own schedule."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scalewright.inference.rehearse import Visit, play
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import Loaded
from scalewright.serve.measure import fitted, measure
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling
from scalewright.spec.errors import UserError
from scalewright.spec.serving import BLOCK
from scalewright.spec.serving_cost import ServingCost
from serve.schedules import model_of


@pytest.mark.parametrize("blocks", [5, 40])
def test_a_rehearsal_is_what_the_engine_does(blocks: int) -> None:
    """Step by step, where every step takes a second; with room for all, and with rows that give up their blocks."""
    rnd, settings = random.Random(3), Settings(kv_blocks=blocks, max_concurrency=4, step_tokens=80, prefix_cache=False)
    engine = Engine(Loaded(model_of("llama"), None, frozenset()), settings)
    visits = [
        Visit(n, rnd.choice([1, 30, 64, 100, 150]), rnd.randint(2, 120), float(rnd.randint(0, 60))) for n in range(12)
    ]
    visits.sort(key=lambda visit: visit.came)
    server = ServingCost(
        model="llama", params=1, threads=1, dtype="float32", room=engine.compute.room, step_tokens=80,
        max_concurrency=4, kv_tokens=blocks * BLOCK, seconds={"step": 1.0}, steps=1, error=0.0,
    )  # fmt: skip
    for place, visit in enumerate(visits):
        visit.number = place
    play(server, visits)
    todo, clock = list(visits)[::-1], 0.0
    number_of, first, last = dict[int, int](), dict[int, float](), dict[int, float]()
    while todo or not engine.idle:
        while todo and todo[-1].came <= clock:
            visit = todo.pop()
            ids = [rnd.randrange(64) for _ in range(visit.prompt)]
            number_of[engine.add(Request(ids, visit.new, Sampling(0)))] = visit.number
        if engine.idle:
            clock = todo[-1].came
            continue
        updates, clock = engine.step(), clock + 1.0
        for update in updates:
            first.setdefault(number_of[update.number], clock)
            last[number_of[update.number]] = clock
    assert [(first[visit.number], last[visit.number]) for visit in visits] == [(v.first, v.last) for v in visits]
    assert (engine.stats().preempted > 0) == (blocks == 5)
    engine.close()


def test_a_fit_finds_what_made_the_seconds() -> None:
    """With a tenth of them held up by something else, and a coefficient that is none."""
    rng = np.random.default_rng(0)
    counts = np.stack([np.ones(200), rng.integers(1, 100, 200), rng.integers(0, 9, 200)], axis=1).astype(float)
    took = counts @ np.array([2e-3, 1e-4, 0.0]) * rng.normal(1.0, 0.01, 200)
    took[::10] *= 3
    out = fitted(counts, took)
    assert out[:2] == pytest.approx([2e-3, 1e-4], rel=0.05)
    assert out[2] < 1e-5


def test_an_engine_is_measured_and_left_empty() -> None:
    settings = Settings(kv_blocks=60, max_concurrency=4)
    engine = Engine(Loaded(model_of("llama"), None, frozenset()), settings)
    server = measure(engine, 3.0)
    assert engine.idle
    assert engine.stats().blocks_used == 0
    assert server.steps >= 60
    assert server.kv_tokens == 60 * BLOCK
    assert server.seconds["step"] + server.seconds["forward"] > 0
    assert min(server.seconds.values()) >= 0
    with pytest.raises(UserError, match="too few"):
        measure(engine, 0.001)
    engine.close()
